"""Reading rows of a Parquet table a few at a time, whatever the size of its row groups."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import accumulate
from typing import Any

from vtk.errors import ImageError
from vtk.sources.base import Picture, check_size, encoded
from vtk.sources.table import TableSource, import_arrow, opened

# Rows are read in pieces of about this size; the last pieces are kept for threads that are a little behind.
PIECE_BYTES = 1 << 23
MAX_PIECE_ROWS = 64
MAX_KEPT_PIECES = 4


class OpenTable:
    """A table with one place at which it is read on; a row before it is found by reading its row group again."""

    def __init__(self, source: TableSource) -> None:
        self.source = source
        self._arrow = import_arrow()
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._table = self._stack.enter_context(opened(source.blob))
        self._starts = [0, *accumulate(source.groups)]
        self._pieces: OrderedDict[int, Any] = OrderedDict()
        self._damage: dict[int, tuple[int, str]] = {}
        self._next, self._end = 0, 0
        self._batches: Iterator[Any] = iter(())

    def read(self, position: int) -> Picture:
        """The picture of row `position`. Raises ImageError; a damaged page costs the rest of its row group."""
        with self._lock:
            data, name = self._row(position)
        if data is None:
            raise ImageError("empty", "The row holds no bytes; pictures that a table only names are not read.")
        check_size(len(data))
        return encoded(data, {} if self.source.id_column is None else {"id": name})

    def close(self) -> None:
        with self._lock:
            self._pieces.clear()
            self._batches = iter(())
            self._next = self._end = 0
            self._stack.close()

    def _row(self, row: int) -> tuple[bytes | None, Any]:
        for start, piece in self._pieces.items():
            if start <= row < start + piece.num_rows:
                return self._values(piece, row - start)
        if not self._next <= row < self._end:
            self._enter(row)
        while True:
            start, piece = self._advance(row)
            if row < start + piece.num_rows:
                return self._values(piece, row - start)

    def _values(self, piece: Any, row: int) -> tuple[bytes | None, Any]:
        source = self.source
        value = piece.column(source.column)[row]
        if source.nested and value.is_valid:
            value = value["bytes"]
        return value.as_py(), piece.column(source.id_column)[row].as_py() if source.id_column else None

    def _enter(self, row: int) -> None:
        """Begin with the row group of `row`."""
        group = next(index for index, end in enumerate(self._starts[1:]) if row < end)
        self._next, self._end = self._starts[group], self._starts[group + 1]
        if group in self._damage and row >= self._damage[group][0]:
            raise ImageError("corrupt", self._damage[group][1])
        source = self.source
        columns = [f"{source.column}.bytes" if source.nested else source.column, source.id_column]
        self._batches = self._table.iter_batches(
            self._piece_rows(group), row_groups=[group], columns=[name for name in columns if name]
        )

    def _piece_rows(self, group: int) -> int:
        about = self._table.metadata.row_group(group)
        rows = PIECE_BYTES * int(about.num_rows) // max(1, int(about.total_byte_size))
        return max(1, min(MAX_PIECE_ROWS, rows))

    def _advance(self, row: int) -> tuple[int, Any]:
        start = self._next
        try:
            piece = next(self._batches)
        except (StopIteration, OSError, self._arrow.ArrowException) as error:
            group = self._starts.index(self._end) - 1
            self._damage[group] = (start, f"The table is damaged from row {start} on: {error}.")
            self._next = self._end = 0
            raise ImageError("corrupt", self._damage[group][1]) from error
        self._next += piece.num_rows
        self._pieces[start] = piece
        while len(self._pieces) > MAX_KEPT_PIECES:
            self._pieces.popitem(last=False)
        return start, piece
