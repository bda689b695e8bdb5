"""Embeddings as one Parquet table, made at the end from the job's rows and a spool of raw vectors, and read back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from vtk.errors import MissingDependencyError, OutputError
from vtk.postprocess.results import Embeddings, FloatArray
from vtk.sinks.base import OutputFolder, Record, Row, Rows, Sink

TABLE = "embeddings.parquet"
SPOOL = "embeddings.spool"
# A row as Python objects takes many times what it takes in a table: few are in memory at once, and many make a group.
BATCH_ROWS = 250
GROUP_BATCHES = 20
GROUP_BYTES = 16 << 20
TEXT_COLUMNS = ("path", "file_name", "sha256")

T = TypeVar("T")


class ParquetSink(Sink):
    """`embeddings.parquet`: path, file_name, sha256, width, height, model, dtype, pooled (list of D floats).

    `model` is the digest of the tensors that made the vectors. With `patches` also `patches` (h·w·D floats, row-major)
    and `grid_hw`. Until the end the vectors lie in `embeddings.spool`: float32, a fixed number of bytes per result. The
    table is whole once the spool is gone; `keep_spool` is for jobs that are never sure to be at their end.
    """

    def __init__(self, out: OutputFolder, *, model: str, patches: bool, keep_spool: bool = False) -> None:
        self.arrow = load_arrow()
        self.out = out
        self.model = model
        self.patches = patches
        self.keep_spool = keep_spool
        self.spool = out.root / SPOOL

    def commit(self, record: Record) -> None:
        result = record.result
        assert isinstance(result, Embeddings)
        with self.spool.open("ab") as stream:
            stream.write(result.pooled.astype("<f4").tobytes())
            if self.patches and result.patches is not None:
                stream.write(result.patches.astype("<f4").tobytes())

    def recall(self, place: int, row: Row) -> Embeddings:
        dim, size = row["dim"], (row["width"], row["height"])
        grid = row["grid_hw"] if self.patches else None
        length = dim if grid is None else dim * (1 + grid[0] * grid[1])
        with self.spool.open("rb") as stream:
            stream.seek(4 * length * place)
            values = np.frombuffer(stream.read(4 * length), "<f4")
        return Embeddings(values[:dim], None if grid is None else values[dim:].reshape(*grid, dim), size)

    def rewind(self, count: int, rows: Rows) -> None:
        if self._is_whole():
            return
        size = count * 4 * sum(self._lengths(rows))
        if size > (self.spool.stat().st_size if self.spool.exists() else 0):
            raise OutputError(
                f"{self.spool} is shorter than the {count} results that are done.", hint="Start again with --overwrite."
            )
        with self.spool.open("ab") as stream:
            stream.truncate(size)

    def finish(self, count: int, rows: Rows) -> None:
        if self._is_whole():
            return
        lengths = self._lengths(rows)
        schema, length = self._schema(lengths), sum(lengths)
        batch_rows = max(1, min(BATCH_ROWS, GROUP_BYTES // (4 * max(1, length))))
        group_batches = max(1, min(GROUP_BATCHES, GROUP_BYTES // (4 * batch_rows * max(1, length))))
        with (
            self.out.replace(TABLE, durable=True) as stream,
            self.spool.open("rb") as spool,
            self.arrow.parquet.ParquetWriter(stream, schema, use_dictionary=["model", "dtype"]) as writer,
        ):
            batches = (self._batch(chunk, spool, length, schema) for chunk in chunks(rows(), batch_rows))
            for group in chunks(batches, group_batches):
                writer.write_table(self.arrow.Table.from_batches(group))
        if not self.keep_spool:
            self.spool.unlink()

    def _is_whole(self) -> bool:
        return (self.out.root / TABLE).exists() and not self.spool.exists()

    def _lengths(self, rows: Rows) -> tuple[int, int]:
        """Floats per result: of the pooled vector and of the patches."""
        first = next(rows(), None)
        if first is None:
            return 0, 0
        dim: int = first["dim"]
        grid = first["grid_hw"] if self.patches else None
        return dim, dim * grid[0] * grid[1] if grid else 0

    def _schema(self, lengths: tuple[int, int]) -> Any:
        arrow = self.arrow
        fields = [(name, arrow.string()) for name in TEXT_COLUMNS]
        fields += [("width", arrow.int32()), ("height", arrow.int32()), ("model", arrow.string())]
        fields += [("dtype", arrow.string()), ("pooled", arrow.list_(arrow.float32(), lengths[0]))]
        if lengths[1]:
            fields += [
                ("patches", arrow.list_(arrow.float32(), lengths[1])),
                ("grid_hw", arrow.list_(arrow.int32(), 2)),
            ]
        return arrow.schema(fields)

    def _batch(self, chunk: list[Row], spool: BinaryIO, length: int, schema: Any) -> Any:
        """The next rows of the table, with their floats from the spool, `length` of each."""
        data = np.frombuffer(spool.read(len(chunk) * 4 * length), "<f4").reshape(len(chunk), length)
        columns: dict[str, Any] = {name: [row[name] for row in chunk] for name in (*TEXT_COLUMNS, "width", "height")}
        columns |= {"model": [self.model] * len(chunk), "dtype": ["float32"] * len(chunk)}
        dim = chunk[0]["dim"]
        columns["pooled"] = self._lists(data[:, :dim])
        if "patches" in schema.names:
            columns["patches"] = self._lists(data[:, dim:])
            columns["grid_hw"] = [row["grid_hw"] for row in chunk]
        return self.arrow.RecordBatch.from_pydict(columns, schema)

    def _lists(self, data: FloatArray) -> Any:
        return self.arrow.FixedSizeListArray.from_arrays(self.arrow.array(data.ravel()), data.shape[1])


def chunks(values: Iterator[T], size: int) -> Iterator[list[T]]:
    """The values, so many at a time."""
    return iter(lambda: list(islice(values, size)), [])


def load_arrow() -> Any:
    """The module pyarrow with its Parquet part. Raises MissingDependencyError."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", needed_for="--format parquet", extra="parquet") from None
    return pyarrow


def read_embeddings(path: Path) -> Iterator[Embeddings]:
    """The values of a table that `ParquetSink` made, in its order, a group of rows in memory at a time."""
    with load_arrow().parquet.ParquetFile(path) as table:
        for group in range(table.num_row_groups):
            yield from _values(table.read_row_group(group))


def _values(group: Any) -> Iterator[Embeddings]:
    vectors = {
        name: group[name].combine_chunks().flatten().to_numpy().reshape(group.num_rows, -1)
        for name in ("pooled", "patches")
        if name in group.schema.names
    }
    sizes = zip(group["width"].to_pylist(), group["height"].to_pylist(), strict=True)
    for place, size in enumerate(sizes):
        pooled, patches = vectors["pooled"][place], None
        if "patches" in vectors:
            patches = vectors["patches"][place].reshape(*group["grid_hw"][place].as_py(), len(pooled))
        yield Embeddings(pooled, patches, size)
