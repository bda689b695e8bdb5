"""Append-only files of JSON lines that survive a killed process: the results and the ledger of a job."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from vtk.sinks.base import Row


class LineLog:
    """Rows with a rising `index`, one line each, appended whole.

    A process killed in the middle of a line leaves a damaged tail; `resume` cuts it off. count, size: rows and bytes in
    the log, after `resume`; last_start: where the last one begins. Nothing is kept of a row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self.size = 0
        self.last_start = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)

    def indexes(self) -> Iterator[int]:
        """The indexes of the intact rows, up to the first damaged one."""
        return (index for index, _ in self._scan())

    def resume(self, end: int) -> None:
        """Keep the intact rows whose index is below `end` and append after them."""
        self.count = self.size = 0
        for index, line_end in self._scan():
            if index >= end:
                break
            self.count, self.size = self.count + 1, line_end
        os.ftruncate(self._file, self.size)

    def append(self, row: Row) -> None:
        """Add one row. Raises OSError when the disk is full, leaving a tail that `resume` cuts off."""
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        rest = line
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.last_start = self.size
        self.count, self.size = self.count + 1, self.size + len(line)

    def row(self, start: int) -> Row:
        """The row whose line begins at byte `start`."""
        with self.path.open("rb") as stream:
            stream.seek(start)
            row: Row = json.loads(stream.readline())
        return row

    def rows(self) -> Iterator[Row]:
        """All rows, read one at a time."""
        return (row for _, row in self.rows_with_starts())

    def rows_with_starts(self) -> Iterator[tuple[int, Row]]:
        """All rows, each with the byte at which its line begins."""
        start = 0
        with self.path.open("rb") as stream:
            for line in stream:
                yield start, json.loads(line)
                start += len(line)

    def sync(self) -> None:
        """Wait until the disk has it. Raises OSError when it cannot, or when the file was deleted meanwhile."""
        os.fsync(self._file)
        if os.fstat(self._file).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))

    def close(self) -> None:
        """Sync and close; the log is unusable afterwards."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def __enter__(self) -> LineLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scan(self) -> Iterator[tuple[int, int]]:
        """(index, offset after the line) of every intact row, up to the first damaged or misplaced one."""
        offset, last = 0, -1
        with self.path.open("rb") as stream:
            for line in stream:
                index = _index(line)
                if index is None or index <= last:
                    return
                offset, last = offset + len(line), index
                yield index, offset


def _index(line: bytes) -> int | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    index = row.get("index") if isinstance(row, dict) else None
    return index if isinstance(index, int) else None
