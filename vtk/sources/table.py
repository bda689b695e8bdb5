"""Parquet tables with a column of pictures: encoded bytes, or Hugging Face's struct of `bytes` and `path`.

A row is named by its `path` where it has one, else by its number. The row of results holds `id`, from the column named
`id` or `image_id` unless another is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vtk.errors import InputError, MissingDependencyError
from vtk.sources.base import Listing, OpenSource, broken
from vtk.sources.blob import Blob
from vtk.sources.names import unique_names

TABLE_SUFFIXES = (".parquet",)
IMAGE_COLUMN = "image"
ID_COLUMNS = ("image_id", "id")
BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class TableSource:
    """A listed table. nested: the column is a struct whose `bytes` are the pictures. groups: rows per row group."""

    blob: Blob
    column: str
    nested: bool
    id_column: str | None
    groups: tuple[int, ...]

    @property
    def path(self) -> str:
        return self.blob.path

    @property
    def identity(self) -> str:
        return f"table {self.column} {self.id_column}"

    def open(self) -> OpenSource:
        from vtk.sources.table_rows import OpenTable

        return OpenTable(self)


def list_table(blob: Blob, image_column: str | None, id_column: str | None) -> Listing:
    """The rows of a table. Raises InputError for columns that are not there or that leave a choice."""
    arrow = import_arrow()
    try:
        with opened(blob) as table:
            return _listing(blob, table, image_column, id_column)
    except OSError as error:
        return broken(blob.path, "unreadable", f"The table cannot be read: {error}.")
    except (arrow.ArrowException, ValueError) as error:
        return broken(blob.path, "corrupt", f"The table cannot be read: {error}.")


@contextmanager
def opened(blob: Blob) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` that reads as little ahead as it can. Raises MissingDependencyError."""
    import_arrow()
    import pyarrow.parquet as pq

    with blob.open() as stream, pq.ParquetFile(stream, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
        yield table


def import_arrow() -> Any:
    """pyarrow. Raises MissingDependencyError."""
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependencyError("pyarrow", needed_for="Reading Parquet", extra="parquet") from error
    return pyarrow


def _listing(blob: Blob, table: Any, image_column: str | None, id_column: str | None) -> Listing:
    schema = table.schema_arrow
    column = _image_column(blob.path, schema, image_column)
    nested = _is_struct(schema.field(column).type)
    groups = tuple(table.metadata.row_group(index).num_rows for index in range(table.num_row_groups))
    source = TableSource(blob, column, nested, _id_column(blob.path, schema, id_column), groups)
    return Listing(source, unique_names(_names(table, source)))


def _image_column(path: str, schema: Any, asked: str | None) -> str:
    able = [str(field.name) for field in schema if _is_bytes(field.type) or _is_struct(field.type)]
    if asked is not None:
        if asked not in able:
            raise InputError(f"{path} has no column '{asked}' of pictures; it has {', '.join(able) or 'none at all'}.")
        return asked
    if IMAGE_COLUMN in able:
        return IMAGE_COLUMN
    if len(able) != 1:
        raise InputError(
            f"{path} has {len(able)} columns of bytes ({', '.join(able) or 'none'}), and none is called 'image'.",
            hint="Name the one that holds the pictures: --image-column NAME.",
        )
    return able[0]


def _id_column(path: str, schema: Any, asked: str | None) -> str | None:
    able = [field.name for field in schema if _is_id(field.type)]
    if asked is not None and asked not in able:
        raise InputError(f"{path} has no column '{asked}' of integers or text; it has {', '.join(able) or 'none'}.")
    return asked or next((name for name in ID_COLUMNS if name in able), None)


def _names(table: Any, source: TableSource) -> list[str]:
    """The paths that the table gives, and the number of the row where there is none."""
    numbers = (f"{row:06d}" for row in range(sum(source.groups)))
    if not source.nested or table.schema_arrow.field(source.column).type.get_field_index("path") < 0:
        return list(numbers)
    batches = table.iter_batches(columns=[f"{source.column}.path"])
    paths = (path for batch in batches for path in batch.column(0).field(0).to_pylist())
    return [path or number for path, number in zip(paths, numbers, strict=True)]


def _is_bytes(kind: Any) -> bool:
    types = import_arrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_struct(kind: Any) -> bool:
    if not import_arrow().types.is_struct(kind):
        return False
    index = kind.get_field_index("bytes")
    return index >= 0 and _is_bytes(kind.field(index).type)


def _is_id(kind: Any) -> bool:
    types = import_arrow().types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind))
