"""Detections as rows, COCO, YOLO and pictures: right values, and right answers for nothing (case V48)."""

import io
import json
import resource
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from vtk.bundle import Label
from vtk.errors import BackendError, InputError
from vtk.inputs import Plan
from vtk.items import FoundItems, Item, Items
from vtk.postprocess.results import Detections
from vtk.preprocess.decode import DecodeOptions, decode
from vtk.sinks.annotated import AnnotatedSink, save_picture
from vtk.sinks.base import OutputFolder, Record, Row, Rows
from vtk.sinks.coco import CocoSink, read_image_ids
from vtk.sinks.drawing import class_color
from vtk.sinks.rows import to_row
from vtk.sinks.yolo import YoloSink

MakeRecord = Callable[..., Record]


def as_rows(*records: Record) -> Rows:
    def rows() -> Iterator[Row]:
        return iter([record.row for record in records])

    return rows


def test_a_row_says_everything(make_record: MakeRecord, found: Detections) -> None:
    row = make_record(found, index=4).row
    assert row == {
        "index": 4,
        "path": "in/a.jpg",
        "file_name": "a.jpg",
        "output": "a",
        "sha256": f"{4:064}",
        "width": 200,
        "height": 100,
        "detections": [
            {
                "class_id": 2,
                "category_id": 90,
                "name": "Zahnbürste",
                "score": 0.9,
                "bbox_xyxy": [10.0, 20.0, 50.5, 80.0],
            },
            {
                "class_id": 0,
                "category_id": 1,
                "name": "person",
                "score": 0.3,
                "bbox_xyxy": [-5.0, -4.0, 210.0, 103.0],
            },
        ],
    }


@given(hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.just(4)), elements=st.floats(-1e4, 1e4, width=32)))
def test_rows_hold_float32_without_loss(boxes: np.ndarray[Any, Any]) -> None:
    n = len(boxes)
    result = Detections(boxes, np.full(n, 1 / 3, np.float32), np.zeros(n, np.int64), (9, 9))
    row = json.loads(json.dumps(to_row(Item(0, "a", "a", "a"), result, sha256="", labels=(Label(1, "x"),))))
    back = np.array([item["bbox_xyxy"] for item in row["detections"]], np.float32).reshape(-1, 4)
    assert np.array_equal(back, boxes)
    assert all(np.float32(item["score"]) == np.float32(1 / 3) for item in row["detections"])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(make_record: MakeRecord, value: float) -> None:
    boxes = np.array([[0, 0, value, 1]], np.float32)
    with pytest.raises(BackendError, match="not finite"):
        make_record(Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int64), (9, 9)))


def test_coco_files(
    tmp_path: Path, make_record: MakeRecord, found: Detections, nothing: Detections, labels: tuple[Label, ...]
) -> None:
    records = [make_record(found, index=0), make_record(nothing, index=2, path=Path("in/b.jpg"))]
    CocoSink(OutputFolder(tmp_path), labels, None).finish(2, as_rows(*records))
    dataset = json.loads((tmp_path / "coco.json").read_text(encoding="utf-8"))
    assert dataset["images"] == [
        {"id": 1, "file_name": "a.jpg", "width": 200, "height": 100},
        {"id": 3, "file_name": "b.jpg", "width": 200, "height": 100},
    ]
    assert dataset["categories"][2] == {"id": 90, "name": "Zahnbürste"}
    first = {"image_id": 1, "category_id": 90, "bbox": [10.0, 20.0, 40.5, 60.0], "score": 0.9}
    second = {"image_id": 1, "category_id": 1, "bbox": [-5.0, -4.0, 215.0, 107.0], "score": 0.3}
    assert json.loads((tmp_path / "coco_results.json").read_text()) == [first, second]
    assert dataset["annotations"][0] == {"id": 1, **first, "area": 2430.0, "iscrowd": 0}
    assert dataset["annotations"][1]["id"] == 2


def test_coco_files_of_nothing(tmp_path: Path, labels: tuple[Label, ...]) -> None:
    CocoSink(OutputFolder(tmp_path), labels, None).finish(0, as_rows())
    assert json.loads((tmp_path / "coco.json").read_text(encoding="utf-8"))["images"] == []
    assert json.loads((tmp_path / "coco_results.json").read_text()) == []


def plan_of(*names: str) -> Plan:
    found = FoundItems()
    for name in names:
        found.add(f"in/{name}", f"/in/{name}")
    return Plan("/in", Items(found, "/in"), {}, 0, 0)


def test_coco_ids_can_come_from_the_ground_truth(
    tmp_path: Path, make_record: MakeRecord, found: Detections, labels: tuple[Label, ...]
) -> None:
    truth = tmp_path / "instances.json"
    truth.write_text(json.dumps({"images": [{"id": 139, "file_name": "a.jpg"}, {"id": 7, "file_name": "z.jpg"}]}))
    ids = read_image_ids(truth, plan_of("a.jpg"))
    CocoSink(OutputFolder(tmp_path), labels, ids).finish(1, as_rows(make_record(found)))
    assert {item["image_id"] for item in json.loads((tmp_path / "coco_results.json").read_text())} == {139}
    assert json.loads((tmp_path / "coco.json").read_text(encoding="utf-8"))["images"][0]["id"] == 139
    with pytest.raises(InputError, match=r"no id for 1 of 2 pictures; the first is 'b\.jpg'"):
        read_image_ids(truth, plan_of("a.jpg", "b.jpg"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"images": 3}',
        '{"images": [{"id": 1}]}',
        "[" * 100_000,
        '{"images": [{"id": 1e999, "file_name": "a"}]}',
    ],
)
def test_a_ground_truth_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="not a COCO file"):
        read_image_ids(tmp_path / "x.json", plan_of("a.jpg"))


def test_yolo_lines_are_clipped_fractions(
    tmp_path: Path, make_record: MakeRecord, found: Detections, nothing: Detections, labels: tuple[Label, ...]
) -> None:
    sink = YoloSink(OutputFolder(tmp_path), labels)
    sink.write(make_record(found, output="d/a"))
    sink.write(make_record(nothing, output="empty"))
    sink.finish(2, as_rows())
    assert (tmp_path / "yolo/labels/d/a.txt").read_text() == (
        "2 0.151250 0.500000 0.202500 0.600000 0.900000\n0 0.500000 0.500000 1.000000 1.000000 0.300000\n"
    )
    assert (tmp_path / "yolo/labels/empty.txt").read_text() == "", "case V48"
    assert (tmp_path / "yolo/classes.txt").read_text(encoding="utf-8").splitlines() == ["person", "car", "Zahnbürste"]


box = st.lists(st.floats(-500, 500, width=32), min_size=4, max_size=4)


@given(st.lists(box, min_size=1, max_size=4))
def test_yolo_numbers_are_always_in_the_unit_square(tmp_path_factory: pytest.TempPathFactory, boxes: list[Any]) -> None:
    root = tmp_path_factory.mktemp("yolo")
    xyxy = np.array([[min(a, c), min(b, d), max(a, c), max(b, d)] for a, b, c, d in boxes], np.float32)
    n = len(xyxy)
    result = Detections(xyxy, np.ones(n, np.float32), np.zeros(n, np.int64), (200, 100))
    item, labels = Item(0, "a", "a", "a"), (Label(1, "x"),)
    YoloSink(OutputFolder(root), labels).write(Record(item, to_row(item, result, sha256="", labels=labels), result))
    lines = (root / "yolo/labels/a.txt").read_text().splitlines()
    assert len(lines) == n
    for line in lines:
        center_x, center_y, width, height = (float(word) for word in line.split()[1:5])
        assert all(0 <= value <= 1 for value in (center_x, center_y, width, height))
        assert center_x - width / 2 >= -1e-6
        assert center_x + width / 2 <= 1 + 1e-6


def save_noise(path: Path, mode: str = "RGB", **options: Any) -> Path:
    pixels = np.random.default_rng(1).integers(0, 256, (100, 200, len(mode)), np.uint8)
    Image.fromarray(pixels.squeeze(), mode=None).save(path, **options)
    return path


@pytest.mark.parametrize(("name", "mode"), [("a.jpg", "RGB"), ("a.png", "RGB"), ("a.png", "RGBA"), ("a.bmp", "L")])
def test_a_picture_without_detections_equals_the_input(
    tmp_path: Path, make_record: MakeRecord, nothing: Detections, name: str, mode: str
) -> None:
    """Case V48."""
    path = save_noise(tmp_path / name, mode)
    AnnotatedSink(OutputFolder(tmp_path), DecodeOptions()).write(make_record(nothing, path=path))
    (made,) = (tmp_path / "annotated").iterdir()
    assert made.suffix == (".jpg" if name == "a.jpg" else ".png")
    assert np.array_equal(decode(made), decode(path))


@pytest.mark.parametrize("name", ["a.jpg", "a.png"])
def test_boxes_are_drawn_where_they_are(tmp_path: Path, make_record: MakeRecord, found: Detections, name: str) -> None:
    path = tmp_path / name
    Image.new("RGB", (200, 100), (40, 40, 40)).save(path)
    AnnotatedSink(OutputFolder(tmp_path), DecodeOptions()).write(make_record(found, path=path))
    pixels = decode(tmp_path / "annotated" / name).astype(int)
    near = 60 if name == "a.jpg" else 0
    assert np.abs(pixels[50, 10] - class_color(2)).max() <= near
    assert np.abs(pixels[80, 40] - class_color(2)).max() <= near
    assert np.abs(pixels[50, 30] - 40).max() <= near
    assert pixels.shape == (100, 200, 3)


def test_pictures_are_drawn_upright(tmp_path: Path, make_record: MakeRecord) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (100, 200), (40, 40, 40)).save(tmp_path / "a.jpg", exif=exif)
    boxes = np.array([[150, 10, 190, 90]], np.float32)
    result = Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int64), (200, 100))
    AnnotatedSink(OutputFolder(tmp_path), DecodeOptions()).write(make_record(result, path=tmp_path / "a.jpg"))
    pixels = decode(tmp_path / "annotated/a.jpg").astype(int)
    assert pixels.shape == (100, 200, 3)
    assert np.abs(pixels[50, 150] - class_color(0)).max() < 60


@pytest.mark.parametrize("size", [(1, 1), (3, 2000), (2000, 3)])
def test_tiny_and_thin_pictures_can_be_drawn_on(tmp_path: Path, make_record: MakeRecord, size: tuple[int, int]) -> None:
    Image.new("RGB", size).save(tmp_path / "a.png")
    boxes = np.array([[-10, -10, size[0] + 10, size[1] + 10], [5, 5, -5, -5]], np.float32)
    result = Detections(boxes, np.ones(2, np.float32), np.zeros(2, np.int64), size)
    AnnotatedSink(OutputFolder(tmp_path), DecodeOptions()).write(make_record(result, path=tmp_path / "a.png"))
    with Image.open(tmp_path / "annotated/a.png") as made:
        assert made.size == size


def test_colors_of_neighboring_classes_differ() -> None:
    colors = [np.array(class_color(index)) for index in range(80)]
    assert all(np.abs(a - b).max() > 60 for a, b in pairwise(colors))
    assert class_color(3) == class_color(3)


def test_a_file_that_breaks_off_leaves_the_old_one(tmp_path: Path) -> None:
    out = OutputFolder(tmp_path)
    with out.replace("d/a.txt") as stream:
        stream.write(b"old")

    def fail() -> None:
        with out.replace("d/a.txt", durable=True) as stream:
            stream.write(b"new, not wh")
            raise io.UnsupportedOperation

    with pytest.raises(io.UnsupportedOperation):
        fail()
    assert (tmp_path / "d/a.txt").read_bytes() == b"old"
    assert list((tmp_path / ".tmp").iterdir()) == []


@pytest.mark.parametrize("as_jpeg", [True, False])
def test_a_picture_that_the_disk_does_not_take_whole_is_an_error(tmp_path: Path, as_jpeg: bool) -> None:
    """A full disk takes what still fits and says so only to the next write."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    out, (soft, hard) = OutputFolder(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"), out.replace("a.jpg") as stream:
            save_picture(stream, noise, as_jpeg=as_jpeg)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not (tmp_path / "a.jpg").exists()
