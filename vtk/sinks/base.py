"""What every output format shares: the record it is given, the folder it writes to, and when it is called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeAlias

from vtk.items import Item
from vtk.naming import found_path
from vtk.postprocess.results import Result
from vtk.preprocess.decode import DecodeOptions, decode, read_picture
from vtk.preprocess.resize import RGBImage
from vtk.sources.base import Picture, encoded

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = Callable[[], Iterator[Row]]
Reread: TypeAlias = Callable[[Row], Picture]

SCRATCH = ".tmp"


@dataclass(frozen=True)
class Record:
    """One finished picture: where it came from, its canonical row, and the value the row was made of.

    encoded: the bytes of its file, None where there is none (a frame of a video) or they were not kept. picture: its
    pixels, upright, None where they were not kept. Nothing is kept unless a format asks (`Sink.wants_picture`).
    """

    item: Item
    row: Row
    result: Result
    encoded: bytes | None = None
    picture: RGBImage | None = None

    def read(self) -> bytes | None:
        """The bytes of the picture's file, read again if need be; None for a picture that has none."""
        if self.encoded is None and self.picture is None:
            return read_picture(Path(self.item.path))
        return self.encoded

    def pixels(self, options: DecodeOptions) -> RGBImage:
        """The upright picture, (height, width, 3); decoded again if need be."""
        if self.picture is not None:
            return self.picture
        return decode(self.encoded or read_picture(Path(self.item.path)), options)


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

    wants_picture: ClassVar[bool] = False  # whether `write` looks at the picture itself

    def write(self, record: Record) -> None:
        """Write the files of one picture; called from several threads, in any order."""

    def commit(self, record: Record) -> None:
        """Take one picture into shared files; called from one thread, in input order."""

    def recall(self, place: int, row: Row) -> Result | None:
        """Result number `place` of the job, of which `row` is the row; None where this format does not hold it."""
        return None

    def rewind(self, count: int, rows: Rows) -> None:
        """Before a job goes on: forget what was committed after the first `count` results."""

    def finish(self, count: int, rows: Rows) -> None:
        """After the last picture: make the files that need all `count` rows, in memory that does not grow with them."""


def read_file(row: Row) -> Picture:
    """The picture of a row whose path is a file. Raises ImageError."""
    return encoded(read_picture(found_path(row["path"])))
