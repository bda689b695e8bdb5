"""Parquet tables with a column of pictures."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vtk.errors import InputError
from vtk.inputs import expand
from vtk.sources import table_rows
from vtk.sources.options import InputOptions

Png = Callable[[int], bytes]
Open = Callable[..., Any]


def save(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_bytes_and_ids(tmp_path: Path, png: Png, opened: Open, kind: pa.DataType) -> None:
    """Rows are named by their number; the id stands before the pictures in the file, and is kept."""
    images = pa.array([png(seed) for seed in range(7)], kind)
    path = save(tmp_path / "t.parquet", {"id": [f"x{n}" for n in range(7)], "image": images}, row_group_size=3)
    table = opened(path)
    assert table.names() == [f"t.parquet/{row:06d}" for row in range(7)]
    assert table.bytes() == [png(seed) for seed in range(7)]
    assert table.extras() == [{"id": f"x{n}"} for n in range(7)]


def test_hugging_face_structs_are_named_by_their_paths(tmp_path: Path, png: Png, opened: Open) -> None:
    paths = ["../a.png", "a.png", None, "d/é.jpg", "a.png"]
    images = [{"bytes": png(seed), "path": path} for seed, path in enumerate(paths)]
    table = opened(save(tmp_path / "t.parquet", {"label": [1] * 5, "image": images, "image_id": [9, 8, 7, 6, 5]}))
    names = ["a.png", "a~2.png", "000002", "d/é.jpg", "a~3.png"]
    assert table.names() == [f"t.parquet/{name}" for name in names]
    assert table.bytes() == [png(seed) for seed in range(5)]
    assert [extra["id"] for extra in table.extras()] == [9, 8, 7, 6, 5]


def test_columns_are_chosen_by_name(tmp_path: Path, png: Png, opened: Open) -> None:
    columns = {"left": [png(1)], "right": [{"bytes": png(2), "path": "r.png"}], "uid": [3], "score": [0.5]}
    path = save(tmp_path / "t.parquet", columns)
    with pytest.raises(InputError, match="--image-column"):
        expand([str(path)])
    right = opened(path, options=InputOptions(image_column="right", id_column="uid"))
    assert right.bytes() == [png(2)]
    assert right.extras() == [{"id": 3}]
    left = opened(path, options=InputOptions(image_column="left"))
    assert left.bytes() == [png(1)]
    assert left.extras() == [{}]
    assert left.plan.digest != opened(path, options=InputOptions(image_column="right")).plan.digest
    for options, message in (
        (InputOptions(image_column="score"), "no column 'score' of pictures; it has left, right"),
        (InputOptions(image_column="left", id_column="score"), "no column 'score' of integers or text"),
    ):
        with pytest.raises(InputError, match=message):
            expand([str(path)], options=options)


def test_rows_without_bytes_fail_alone(tmp_path: Path, png: Png, opened: Open) -> None:
    """A path that a table names is not read: it may be anything on this machine."""
    images = [{"bytes": png(1), "path": "a.png"}, {"bytes": None, "path": "/etc/hostname"}, None, {"bytes": b"x"}]
    table = opened(save(tmp_path / "t.parquet", {"image": images}))
    assert table.bytes() == [png(1), "empty", "empty", b"x"]


@pytest.mark.parametrize("shuffled", [False, True])
def test_any_thread_reads_any_row(tmp_path: Path, png: Png, opened: Open, shuffled: bool) -> None:
    path = save(tmp_path / "t.parquet", {"image": [png(seed) for seed in range(90)]}, row_group_size=20)
    order = list(range(90))
    if shuffled:
        random.Random(0).shuffle(order)
    table = opened(path)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(table.outcome, order)) == [png(seed) for seed in order]


def test_a_row_group_is_read_in_pieces(tmp_path: Path, png: Png, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row group of 200 rows: what is held at a time does not grow with it."""
    monkeypatch.setattr(table_rows, "PIECE_BYTES", 1 << 14)
    path = save(tmp_path / "t.parquet", {"image": [png(seed) for seed in range(200)]}, row_group_size=200)
    table = opened(path)
    assert table.bytes() == [png(seed) for seed in range(200)]
    source = next(iter(table.reader._open.values()))
    assert sum(piece.num_rows for piece in source._pieces.values()) < 100
    assert table.outcome(0) == png(0), "and going back is possible"


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path, png: Png, opened: Open) -> None:
    path = save(
        tmp_path / "t.parquet",
        {"image": [png(seed) for seed in range(12)]},
        row_group_size=4,
        use_dictionary=False,
        compression="snappy",
    )
    data = bytearray(path.read_bytes())
    place = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data[place : place + 40] = b"\xff" * 40
    path.write_bytes(data)
    assert opened(path).bytes() == [*(png(n) for n in range(4)), *["corrupt"] * 4, *(png(n) for n in range(8, 12))]


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no table at all, but long enough to be one" * 9])
def test_what_is_no_table_is_one_failure(tmp_path: Path, opened: Open, data: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(data)
    assert opened(tmp_path / "t.parquet").bytes() == ["corrupt"]


def test_an_empty_table_holds_nothing(tmp_path: Path, png: Png, opened: Open) -> None:
    empty = save(tmp_path / "0.parquet", {"image": pa.array([], pa.binary())})
    with pytest.raises(InputError, match="No pictures"):
        expand([str(empty)])
    assert opened(empty, save(tmp_path / "1.parquet", {"image": [png(1)]})).bytes() == [png(1)]
