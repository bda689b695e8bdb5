"""Embeddings as Parquet and NumPy archives: values, resume, and memory in groups."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from vtk.errors import OutputError
from vtk.postprocess.results import Embeddings
from vtk.sinks import parquet
from vtk.sinks.base import OutputFolder, Record, Row, Rows
from vtk.sinks.npz import NpzSink
from vtk.sinks.parquet import ParquetSink

MakeRecord = Callable[..., Record]
MODEL = "d" * 64


def embedding(seed: int, *, patches: bool = True) -> Embeddings:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((2, 3, 5)).astype(np.float32) if patches else None
    return Embeddings(rng.standard_normal(5).astype(np.float32), dense, (200 + seed, 100))


def as_rows(records: list[Record]) -> Rows:
    def rows() -> Iterator[Row]:
        return iter([record.row for record in records])

    return rows


@pytest.fixture
def records(make_record: MakeRecord) -> list[Record]:
    return [make_record(embedding(seed), index=seed, path=Path(f"in/é{seed}.jpg")) for seed in range(7)]


@pytest.mark.parametrize("patches", [False, True])
def test_parquet_holds_every_vector(
    tmp_path: Path, records: list[Record], patches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 3 * 4 * (35 if patches else 5))
    sink = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=patches)
    sink.rewind(0, as_rows([]))
    for record in records:
        sink.commit(record)
    sink.finish(7, as_rows(records))
    assert pq.ParquetFile(tmp_path / "embeddings.parquet").num_row_groups == 3
    table = pq.read_table(tmp_path / "embeddings.parquet")
    assert table.column_names[:8] == ["path", "file_name", "sha256", "width", "height", "model", "dtype", "pooled"]
    assert str(table.schema.field("pooled").type).startswith("fixed_size_list<")
    for record, row in zip(records, table.to_pylist(), strict=True):
        result = record.result
        assert isinstance(result, Embeddings)
        assert (row["path"], row["width"], row["model"]) == (record.item.path, result.resolution_wh[0], MODEL)
        assert np.array_equal(np.array(row["pooled"], np.float32), result.pooled)
        if patches:
            assert result.patches is not None
            assert np.array_equal(np.array(row["patches"], np.float32).reshape(row["grid_hw"] + [5]), result.patches)
    assert ("patches" in table.column_names) == patches
    assert not (tmp_path / "embeddings.spool").exists()


def test_a_table_is_made_in_memory_that_does_not_grow_with_it(tmp_path: Path) -> None:
    """However short its vectors are, so that many rows would make a group of many bytes."""
    peaks = {}
    for count in (1_000, 8_000):
        sink = ParquetSink(OutputFolder(tmp_path / str(count)), model=MODEL, patches=False)
        sink.spool.parent.mkdir()
        sink.spool.write_bytes(np.arange(2 * count, dtype="<f4").tobytes())

        def rows(count: int = count) -> Iterator[Row]:
            size = {"width": 8, "height": 8, "dim": 2}
            return ({"path": f"{i}.png", "file_name": f"{i}.png", "sha256": f"{i:064}", **size} for i in range(count))

        gc.collect()
        tracemalloc.start()
        try:
            sink.finish(count, rows)
            _, peaks[count] = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        table = pq.read_table(tmp_path / str(count) / "embeddings.parquet")
        assert np.array_equal(np.array(table["pooled"].to_pylist()).ravel(), np.arange(2 * count))
        assert table["sha256"].to_pylist() == [row["sha256"] for row in rows()]
    assert peaks[8_000] < 1.5 * peaks[1_000], peaks


def test_a_resumed_parquet_job_forgets_what_had_no_row(tmp_path: Path, records: list[Record]) -> None:
    sink = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=True)
    for record in records[:5]:
        sink.commit(record)
    with (tmp_path / "embeddings.spool").open("ab") as spool:
        spool.write(b"torn")
    again = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=True)
    again.rewind(3, as_rows(records[:3]))
    for record in records[3:]:
        again.commit(record)
    again.finish(7, as_rows(records))
    pooled = pq.read_table(tmp_path / "embeddings.parquet")["pooled"].to_pylist()
    expected = [record.result.pooled.tolist() for record in records if isinstance(record.result, Embeddings)]
    assert pooled == expected


def test_a_finished_table_is_left_alone(tmp_path: Path, records: list[Record]) -> None:
    sink = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=False)
    for record in records:
        sink.commit(record)
    sink.finish(7, as_rows(records))
    before = (tmp_path / "embeddings.parquet").read_bytes()
    again = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=False)
    again.rewind(7, as_rows(records))
    again.finish(7, as_rows(records))
    assert (tmp_path / "embeddings.parquet").read_bytes() == before


def test_a_spool_that_lost_vectors_is_an_error(tmp_path: Path, records: list[Record]) -> None:
    sink = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=False)
    sink.commit(records[0])
    with pytest.raises(OutputError, match="shorter than the 2 results"):
        sink.rewind(2, as_rows(records[:2]))


def test_a_table_of_nothing(tmp_path: Path) -> None:
    sink = ParquetSink(OutputFolder(tmp_path), model=MODEL, patches=True)
    sink.rewind(0, as_rows([]))
    sink.finish(0, as_rows([]))
    assert pq.read_table(tmp_path / "embeddings.parquet").num_rows == 0


@pytest.mark.parametrize("patches", [False, True])
def test_npz_holds_the_vectors_of_one_picture(tmp_path: Path, make_record: MakeRecord, patches: bool) -> None:
    result = embedding(3)
    NpzSink(OutputFolder(tmp_path), patches=patches).write(make_record(result, output="d/a.b"))
    with np.load(tmp_path / "npz/d/a.b.npz") as archive:
        assert np.array_equal(archive["pooled"], result.pooled)
        assert archive["resolution_wh"].tolist() == [203, 100]
        assert ("patches" in archive) == patches
        if patches:
            assert np.array_equal(archive["patches"], result.patches)
