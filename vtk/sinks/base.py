"""What every output format shares: the record it is given, the folder it writes to, and when it is called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from vtk.inputs import Item
from vtk.postprocess.results import Result

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = Callable[[], Iterator[Row]]

SCRATCH = ".tmp"


@dataclass(frozen=True)
class Record:
    """One finished picture: where it came from, its canonical row, and the value the row was made of."""

    item: Item
    row: Row
    result: Result


@dataclass(frozen=True)
class OutputFolder:
    """Where a job writes. Files appear whole or not at all; a killed process leaves its rest in `.tmp` only."""

    root: Path

    @contextmanager
    def replace(self, name: str, *, durable: bool = False) -> Iterator[BinaryIO]:
        """Write `root/name`, which takes its place when the block ends well; `durable` also syncs it to the disk."""
        target = self.root / name
        scratch = self.root / SCRATCH / f"{os.getpid()}-{threading.get_ident()}"
        for folder in (scratch.parent, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("wb") as stream:
                yield stream
                if durable:
                    stream.flush()
                    os.fsync(stream.fileno())
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)


class Sink:
    """One output format. A format overrides the steps it needs; the others do nothing.

    A picture counts as done when its row is in the job's journal, so `write` and `commit` come before that and may be
    repeated for a picture that was interrupted in between.
    """

    def write(self, record: Record) -> None:
        """Write the files of one picture; called from several threads, in any order."""

    def commit(self, record: Record) -> None:
        """Take one picture into shared files; called from one thread, in input order."""

    def rewind(self, count: int, rows: Rows) -> None:
        """Before a job goes on: forget what was committed after the first `count` results."""

    def finish(self, count: int, rows: Rows) -> None:
        """After the last picture: make the files that need all `count` rows, in memory that does not grow with them."""
