"""Nearest rows are those of a float64 product over the whole table, whatever its blocks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtk.errors import InputError
from vtk.search import table as table_module
from vtk.search.nearest import nearest
from vtk.search.table import open_table, unit

MakeTable = Callable[..., Path]


def cosines(vectors: Any, queries: Any) -> Any:
    wide, asked = vectors.astype(np.float64), queries.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    return asked @ wide.T


@pytest.mark.parametrize("rows", [1, 7, 8, 50])
def test_the_best_of_all_blocks_come_by_falling_score(
    make_table: MakeTable, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 8)
    rng = np.random.default_rng()
    vectors = (rng.normal(size=(rows, 12)) * rng.uniform(0.1, 30, (rows, 1))).astype(np.float32)
    queries = rng.normal(size=(3, 12)).astype(np.float32)
    found = nearest(open_table(make_table(vectors)), unit(queries), k=5)
    wanted = cosines(vectors, queries)
    for hits, scores in zip(found, wanted, strict=True):
        assert [hit.entry.row for hit in hits] == np.argsort(-scores)[:5].tolist()
        assert [hit.score for hit in hits] == pytest.approx(np.sort(scores)[::-1][:5], abs=1e-6)


def test_equal_rows_come_in_their_order(make_table: MakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "BLOCK_ROWS", 4)
    table = open_table(make_table(np.ones((11, 5), np.float32)))
    (hits,) = nearest(table, unit(np.ones((1, 5))), k=6)
    assert [hit.entry.row for hit in hits] == [0, 1, 2, 3, 4, 5]
    assert [hit.entry.path for hit in hits] == [f"p/{row}.jpg" for row in range(6)]


def test_a_vector_without_a_direction_is_named(make_table: MakeTable) -> None:
    vectors = np.ones((3, 4), np.float32)
    vectors[1] = 0
    with pytest.raises(InputError, match="vector 1 is zero or not finite"):
        list(open_table(make_table(vectors)).blocks())
    for value in (np.nan, np.inf, -np.inf):
        vectors[1, 2] = value
        with pytest.raises(ValueError, match="vector 1 is zero or not finite"):
            unit(vectors)


def test_what_is_no_table_of_embeddings_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    with pytest.raises(InputError, match="No such file"):
        open_table(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        open_table(tmp_path / "text.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(InputError, match="has the columns a"):
        open_table(tmp_path / "other.parquet")


def test_an_empty_table_is_refused(make_table: MakeTable) -> None:
    with pytest.raises(InputError, match="no picture"):
        open_table(make_table(np.ones((0, 4), np.float32)))
