"""The table that `vtk run --format parquet` makes, read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.errors import InputError
from vtk.requirements import require

BLOCK_ROWS = 8192
_COLUMNS = ("file_name", "path", "sha256", "model", "pooled")

Vectors: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    """One picture of the table. row: its place, from 0. sha256: of the picture's file."""

    row: int
    file_name: str
    path: str
    sha256: str


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows: their entries, and their vectors (N, D), each of length 1."""

    entries: tuple[Entry, ...]
    vectors: Vectors


@dataclass(frozen=True)
class EmbeddingTable:
    """An open table. model: digest of the tensors that made the vectors. dim: numbers per vector."""

    path: Path
    model: str
    dim: int
    count: int

    def blocks(self) -> Iterator[Block]:
        """All rows in order, at most BLOCK_ROWS at a time. Raises InputError for a vector with no direction."""
        start = 0
        for batch in _reader(self.path).iter_batches(BLOCK_ROWS, columns=list(_COLUMNS)):
            yield self._block(batch, start)
            start += batch.num_rows

    def _block(self, batch: Any, start: int) -> Block:
        values = batch.column("pooled").flatten().to_numpy(zero_copy_only=False).reshape(-1, self.dim)
        if set(batch.column("model").to_pylist()) != {self.model}:
            raise InputError(f"{self.path} holds vectors of several models, which cannot be compared.")
        texts = (batch.column(name).to_pylist() for name in ("file_name", "path", "sha256"))
        entries = tuple(Entry(start + row, *columns) for row, columns in enumerate(zip(*texts, strict=True)))
        try:
            return Block(entries, unit(values))
        except ValueError as error:
            raise InputError(f"{self.path}: {error}.", hint="Make the table again with 'vtk run'.") from error


def open_table(path: Path) -> EmbeddingTable:
    """Raises InputError for a file that is not a table of embeddings or holds none, MissingDependencyError."""
    require("pyarrow", needed_for="vtk search", extra="parquet")
    if not path.is_file():
        raise InputError(
            f"No such file: {path}.", hint="'vtk run BUNDLE pictures/ -o OUT' makes OUT/embeddings.parquet."
        )
    reader = _reader(path)
    schema, count = reader.schema_arrow, reader.metadata.num_rows
    missing = [name for name in _COLUMNS if name not in schema.names]
    if missing or not hasattr(schema.field("pooled").type, "list_size"):
        raise InputError(
            f"{path} is not a table of embeddings: it has the columns {', '.join(schema.names) or 'none'}.",
            hint="'vtk run' with an embedding bundle makes one.",
        )
    if not count:
        raise InputError(f"{path} holds no picture.")
    first = next(reader.iter_batches(1, columns=["model"]))
    return EmbeddingTable(path, first.column("model")[0].as_py(), schema.field("pooled").type.list_size, count)


def unit(vectors: npt.NDArray[np.floating[Any]]) -> Vectors:
    """Vectors (N, D) scaled to length 1, float32. Raises ValueError for one that is zero or not finite."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    wrong = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(wrong):
        raise ValueError(f"vector {wrong[0]} is zero or not finite")
    scaled: Vectors = (vectors / lengths[:, None]).astype(np.float32)
    return scaled


def _reader(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}.") from error
