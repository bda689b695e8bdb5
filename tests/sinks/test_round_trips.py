"""Every format read back: what it says is what the model found, with masks, odd names, and nothing found (case V48)."""

import csv
import json
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import supervision as sv
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from scipy.ndimage import binary_fill_holes

from vtk.bundle import Label
from vtk.errors import MissingDependencyError, UsageError
from vtk.items import Item
from vtk.postprocess.masks import Masks
from vtk.postprocess.results import Classification, Detections, Embeddings, Result
from vtk.preprocess.decode import DecodeOptions
from vtk.sinks.annotated import AnnotatedSink
from vtk.sinks.base import OutputFolder, Record, Row, Rows
from vtk.sinks.coco import CocoSink
from vtk.sinks.crops import CropsSink, slug
from vtk.sinks.drawing import MASK_OPACITY, class_color
from vtk.sinks.mask_png import MaskPngSink, class_map
from vtk.sinks.npz import NpzSink, read_npz
from vtk.sinks.outlines import outline
from vtk.sinks.parquet import ParquetSink, read_embeddings
from vtk.sinks.rows import result_of, to_row
from vtk.sinks.tables import CsvSink, TableSink
from vtk.sinks.yolo import YoloSink

LABELS = (Label(1, "person"), Label(3, 'a "quoted", name'), Label(90, "Zahnbürste"))
Bools = npt.NDArray[np.bool_]
PackMask = Callable[[Bools], bytes]
slow = settings(max_examples=60, deadline=None)

file_names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20)
floats = st.floats(-1e4, 1e4, width=32)


@st.composite
def found(draw: st.DrawFn, *, masks: bool) -> tuple[Detections, Bools | None]:
    """Detections by falling score and, if asked for, their masks as arrays (N, H, W)."""
    n = draw(st.integers(0, 4))
    width, height = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    boxes = draw(hnp.arrays(np.float32, (n, 4), elements=floats))
    scores = -np.sort(-draw(hnp.arrays(np.float32, n, elements=st.floats(0, 1, width=32))))
    classes = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 2)))
    if not masks:
        return Detections(boxes, scores, classes, (width, height)), None
    dense = draw(hnp.arrays(np.bool_, (n, height, width)))
    packed = tuple(sys.modules["stub_model"].pack_mask(mask) for mask in dense)
    return Detections(boxes, scores, classes, (width, height), Masks(packed, (width, height))), dense


@pytest.fixture(autouse=True)
def _helpers(stub: ModuleType) -> None:
    """Makes `stub_model` importable."""


def record_of(result: Result, name: str = "a.jpg", index: int = 0) -> Record:
    item = Item(index, f"in/{name}", name, "a")
    return Record(item, to_row(item, result, sha256=f"{index:064}", labels=LABELS), result)


def rows_of(*records: Record) -> Rows:
    def rows() -> Iterator[Row]:
        return (json.loads(json.dumps(record.row)) for record in records)

    return rows


def assert_same(one: Detections, other: Detections) -> None:
    assert one.resolution_wh == other.resolution_wh
    for name in ("xyxy", "scores", "class_ids"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    assert (one.masks is None) == (other.masks is None)
    if one.masks is not None and other.masks is not None:
        assert one.masks.rle == other.masks.rle


@slow
@given(st.booleans().flatmap(lambda masks: found(masks=masks)))
def test_a_row_gives_the_result_back(value: tuple[Detections, Bools | None]) -> None:
    result, dense = value
    (row,) = rows_of(record_of(result))()
    back = result_of(row, "detect" if dense is None else "segment")
    assert isinstance(back, Detections)
    assert_same(result, back)
    if dense is not None and back.masks is not None:
        assert np.array_equal(back.masks.dense(), dense)


@given(hnp.arrays(np.float32, 3, elements=st.floats(0, 1, width=32)))
def test_classes_come_back(scores: npt.NDArray[np.float32]) -> None:
    result = Classification(np.array([2, 0, 1]), scores, (9, 8))
    (row,) = rows_of(record_of(result))()
    back = result_of(row, "classify")
    assert isinstance(back, Classification)
    assert np.array_equal(back.scores, scores)
    assert back.class_ids.tolist() == [2, 0, 1]


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@slow
@given(st.tuples(found(masks=True), found(masks=True)))
def test_coco_masks_are_those_of_pycocotools(
    tmp_path_factory: pytest.TempPathFactory, values: tuple[tuple[Detections, Bools], ...]
) -> None:
    """The reference implementation decodes the masks to the pixels that were packed."""
    root = tmp_path_factory.mktemp("coco")
    records = [record_of(result, f"{place}.jpg", place * 3) for place, (result, _) in enumerate(values)]
    CocoSink(OutputFolder(root), LABELS, None, masks=True).finish(2, rows_of(*records))
    dataset, boxes, masks = (
        json.loads((root / name).read_text()) for name in ("coco.json", "coco_results.json", "coco_results_masks.json")
    )
    assert [image["id"] for image in dataset["images"]] == [1, 4]
    assert len(boxes) == len(masks) == len(dataset["annotations"]) == sum(len(result) for result, _ in values)
    for item, box, mask in zip(dataset["annotations"], boxes, masks, strict=True):
        common = {key: item[key] for key in ("image_id", "category_id", "score")}
        assert box == common | {"bbox": item["bbox"]}
        assert mask == common | {"segmentation": item["segmentation"]}
    for place, (result, dense) in enumerate(values):
        mine = [item for item in dataset["annotations"] if item["image_id"] == place * 3 + 1]
        for index, item in enumerate(mine):
            assert np.array_equal(coco_mask.decode(item["segmentation"]).astype(bool), dense[index])
            assert item["area"] == int(coco_mask.area(item["segmentation"])) == dense[index].sum()
            x, y, width, height = item["bbox"]
            assert np.allclose([x, y, x + width, y + height], result.xyxy[index], rtol=0, atol=2e-3)
            assert item["category_id"] == LABELS[result.class_ids[index]].category_id


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_pycocotools_evaluates_both_results(
    tmp_path: Path, stub: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Perfect against themselves, and in the size range of the mask."""
    mask = np.zeros((200, 200), np.bool_)
    mask[20:50, 30:60] = True
    masks = Masks((stub.pack_mask(mask),), (200, 200))
    boxes = np.array([[0, 0, 190, 190]], np.float32)
    result = Detections(boxes, np.ones(1, np.float32), np.array([1]), (200, 200), masks)
    CocoSink(OutputFolder(tmp_path), LABELS, None, masks=True).finish(1, rows_of(record_of(result)))
    dataset = COCO(str(tmp_path / "coco.json"))
    for kind, name in (("bbox", "coco_results.json"), ("segm", "coco_results_masks.json")):
        results = dataset.loadRes(str(tmp_path / name))
        evaluation = COCOeval(dataset, results, kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        assert evaluation.stats[0] == pytest.approx(1.0)
    assert results.loadAnns(results.getAnnIds())[0]["area"] == 900
    assert evaluation.stats[3] == pytest.approx(1.0), "30 x 30 pixels are small"
    capsys.readouterr()


def inside(polygon: npt.NDArray[np.float64], width: int, height: int) -> Bools:
    """Pixels whose center lies in a polygon, by counting the edges to their right."""
    xs, ys = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    odd = np.zeros((height, width), np.bool_)
    for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        if y0 != y1:
            odd ^= ((y0 > ys) != (y1 > ys)) & (xs < (x1 - x0) * (ys - y0) / (y1 - y0) + x0)
    return odd


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.bool_, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=14)))
def test_an_outline_holds_the_pixels_of_its_mask(mask: Bools) -> None:
    """Separate parts and single pixels included; holes are filled."""
    polygon = outline(mask)
    assert np.array_equal(inside(polygon, *mask.shape[::-1]), binary_fill_holes(mask))
    assert len(polygon) >= 4 or not mask.any()


@slow
@given(found(masks=True))
def test_yolo_outlines_come_back(tmp_path_factory: pytest.TempPathFactory, value: tuple[Detections, Bools]) -> None:
    result, dense = value
    root = tmp_path_factory.mktemp("yolo")
    YoloSink(OutputFolder(root), LABELS, outlines=True).write(record_of(result))
    lines = (root / "yolo/labels/a.txt").read_text().splitlines()
    assert len(lines) == len(result)
    for line, mask, class_id, score in zip(lines, dense, result.class_ids, result.scores, strict=True):
        numbers = [float(word) for word in line.split()]
        assert numbers[0] == class_id
        assert numbers[-1] == pytest.approx(score, abs=1e-6)
        polygon = np.array(numbers[1:-1]).reshape(-1, 2)
        assert ((polygon >= 0) & (polygon <= 1)).all()
        if mask.any():
            assert np.array_equal(
                inside(polygon * result.resolution_wh, *result.resolution_wh), binary_fill_holes(mask)
            )
        else:
            assert len(polygon) == 4, "the box stands for an empty mask"


def results_of_table(lines: list[dict[str, Any]], names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Lines by file name, without the one that says that nothing was found."""
    assert list(dict.fromkeys(line["file_name"] for line in lines)) == names, "no picture is missing"
    return {name: [line for line in lines if line["file_name"] == name and line["class_id"] != ""] for name in names}


@slow
@given(st.lists(st.tuples(file_names, found(masks=True)), max_size=3, unique_by=lambda pair: pair[0]))
def test_csv_and_parquet_come_back_without_loss(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[str, tuple[Detections, Bools]]]
) -> None:
    """Names with commas, quotes and line breaks; float32 to the last bit; pictures in which nothing was found."""
    root = tmp_path_factory.mktemp("tables")
    records = [record_of(result, name, place) for place, (name, (result, _)) in enumerate(values)]
    for sink in (CsvSink(OutputFolder(root), "segment"), TableSink(OutputFolder(root), "segment")):
        sink.finish(len(records), rows_of(*records))
    with (root / "detections.csv").open(encoding="utf-8", newline="") as stream:
        from_csv = list(csv.DictReader(stream))
    table = pq.read_table(root / "detections.parquet")
    from_parquet = [{name: "" if v is None else v for name, v in line.items()} for line in table.to_pylist()]
    assert table.column_names == list(from_csv[0] if from_csv else table.column_names)
    names = [record.row["file_name"] for record in records]
    for lines in (from_csv, from_parquet):
        by_name = results_of_table(lines, names)
        for name, (result, _) in zip(names, (value for _, value in values), strict=True):
            found_lines = by_name[name]
            assert [int(line["class_id"]) for line in found_lines] == result.class_ids.tolist()
            boxes = np.array([[line[key] for key in ("x0", "y0", "x1", "y1")] for line in found_lines], np.float32)
            assert np.array_equal(boxes.reshape(-1, 4), result.xyxy)
            assert np.array_equal(np.array([line["score"] for line in found_lines], np.float32), result.scores)
            assert result.masks is not None
            assert tuple(line["mask_counts"].encode() for line in found_lines) == result.masks.rle
            assert all(line["name"] == LABELS[int(line["class_id"])].name for line in found_lines)


@slow
@given(found(masks=True))
def test_the_best_mask_owns_a_pixel(tmp_path_factory: pytest.TempPathFactory, value: tuple[Detections, Bools]) -> None:
    """The value is 1 + the class of the first mask, by falling score, that covers the pixel."""
    result, dense = value
    root = tmp_path_factory.mktemp("png")
    sink = MaskPngSink(OutputFolder(root), LABELS)
    sink.write(record_of(result))
    sink.finish(1, rows_of())
    width, height = result.resolution_wh
    expected = np.zeros((height, width), np.uint8)
    for class_id, mask in zip(result.class_ids, dense, strict=True):
        expected[(expected == 0) & mask] = class_id + 1
    with Image.open(root / "masks/a.png") as picture:
        assert picture.mode == "P"
        assert picture.size == (width, height)
        assert np.array_equal(np.asarray(picture), expected)
        assert picture.getpalette()[:3] == [0, 0, 0]  # type: ignore[index]
    assert (root / "masks/classes.txt").read_text(encoding="utf-8").splitlines() == [label.name for label in LABELS]


def test_the_score_decides_whatever_the_order(stub: ModuleType) -> None:
    full = stub.pack_mask(np.ones((2, 2), np.bool_))
    scores = np.array([0.2, 0.9, 0.9], np.float32)
    boxes = np.zeros((3, 4), np.float32)
    result = Detections(boxes, scores, np.array([0, 1, 2]), (2, 2), Masks((full,) * 3, (2, 2)))
    assert (class_map(result) == 2).all(), "of equal scores the first"


def test_more_classes_than_a_palette_has_are_refused(tmp_path: Path) -> None:
    labels = tuple(Label(index, str(index)) for index in range(256))
    MaskPngSink(OutputFolder(tmp_path), labels[:255])
    with pytest.raises(UsageError, match="255 classes, this bundle has 256"):
        MaskPngSink(OutputFolder(tmp_path), labels)


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_crops_are_the_pixels_of_the_boxes(tmp_path: Path, name: str) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (30, 40, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / name, quality=100, subsampling=0)
    boxes = np.array([[2.4, 3.6, 10.2, 9.0], [-5, -5, 4, 4], [50, 50, 60, 60], [30, 20, 99, 99]], np.float32)
    result = Detections(boxes, np.full(4, 0.5, np.float32), np.array([0, 1, 2, 2]), (40, 30))
    item = Item(0, str(tmp_path / name), name, "sub/a")
    row = to_row(item, result, sha256="", labels=LABELS)
    CropsSink(OutputFolder(tmp_path), DecodeOptions()).write(Record(item, row, result))
    suffix = name[-3:]
    expected = {
        f"000-person.{suffix}": pixels[3:9, 2:11],
        f"001-a-quoted-name.{suffix}": pixels[0:4, 0:4],
        f"003-Zahnbürste.{suffix}": pixels[20:30, 30:40],
    }
    made = {path.name: path for path in (tmp_path / "crops/sub/a").iterdir()}
    assert made.keys() == expected.keys(), "a box outside the picture has no crop, and its number is missing"
    for file_name, part in expected.items():
        with Image.open(made[file_name]) as crop:
            near = 40 if suffix == "jpg" else 0
            assert np.abs(np.asarray(crop).astype(int) - part).max() <= near


@given(st.text())
def test_class_names_become_harmless_file_names(name: str) -> None:
    word = slug({"name": name, "class_id": 7})
    assert re.fullmatch(r"[^\W_]+(-[^\W_]+)*", word) or word == "class-7"
    assert len(word) <= 40


@pytest.mark.parametrize("patches", [False, True])
def test_embeddings_come_back_from_both_formats(tmp_path: Path, patches: bool) -> None:
    rng = np.random.default_rng(0)
    dense = [rng.standard_normal((2, 3, 5)).astype(np.float32) if patches else None for _ in range(4)]
    values = [
        Embeddings(rng.standard_normal(5).astype(np.float32), dense[index], (10 + index, 8)) for index in range(4)
    ]
    records = [record_of(value, f"{index}.jpg", index) for index, value in enumerate(values)]
    table = ParquetSink(OutputFolder(tmp_path), model="d", patches=patches)
    table.rewind(0, rows_of())
    archives = NpzSink(OutputFolder(tmp_path), patches=patches)
    back = []
    for record in records:
        table.commit(record)
        archives.write(record)
        back.append(read_npz(tmp_path / "npz/a.npz"))
    table.finish(4, rows_of(*records))
    for read in (back, list(read_embeddings(tmp_path / "embeddings.parquet"))):
        for one, other in zip(values, read, strict=True):
            assert np.array_equal(one.pooled, other.pooled)
            assert one.resolution_wh == other.resolution_wh
            assert (one.patches is None) == (other.patches is None)
            if one.patches is not None and other.patches is not None:
                assert np.array_equal(one.patches, other.patches)


@slow
@given(st.booleans().flatmap(lambda masks: found(masks=masks)))
def test_supervision_gets_the_same(value: tuple[Detections, Bools | None]) -> None:
    result, dense = value
    other = result.to_supervision([label.name for label in LABELS])
    assert isinstance(other, sv.Detections)
    assert len(other) == len(result)
    assert np.array_equal(other.xyxy, result.xyxy)
    assert np.array_equal(other.confidence, result.scores)
    assert np.array_equal(other.class_id, result.class_ids)
    assert other.data["class_name"].tolist() == [LABELS[index].name for index in result.class_ids]
    assert (other.mask is None) == (dense is None)
    assert dense is None or np.array_equal(other.mask, dense)


def test_supervision_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "supervision", None)
    empty = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), (2, 2))
    with pytest.raises(MissingDependencyError, match="supervision") as caught:
        empty.to_supervision()
    assert "vtk-deploy[supervision]" in str(caught.value)


def test_masks_are_laid_over_their_pixels_and_no_others(tmp_path: Path, stub: ModuleType) -> None:
    """Half of the class's color, the better one on top; the box is drawn elsewhere."""
    Image.new("RGB", (200, 100), (100, 100, 100)).save(tmp_path / "a.png")
    first, second = np.zeros((2, 100, 200), np.bool_)
    first[5:15, 5:15] = True
    second[10:30, 10:30] = True
    masks = Masks((stub.pack_mask(first), stub.pack_mask(second)), (200, 100))
    boxes = np.full((2, 4), (150, 80, 190, 95), np.float32)
    result = Detections(boxes, np.array([0.9, 0.5], np.float32), np.array([0, 1]), (200, 100), masks)
    item = Item(0, str(tmp_path / "a.png"), "a.png", "a")
    row = to_row(item, result, sha256="", labels=LABELS)
    AnnotatedSink(OutputFolder(tmp_path), DecodeOptions()).write(Record(item, row, result))
    with Image.open(tmp_path / "annotated/a.png") as made:
        pixels = np.asarray(made).astype(int)

    def tinted(under: Any, class_id: int) -> Any:
        return np.array(under) + MASK_OPACITY * (np.array(class_color(class_id)) - under)

    gray = np.full(3, 100.0)
    assert np.abs(pixels[7, 7] - tinted(gray, 0)).max() <= 1
    assert np.abs(pixels[20, 20] - tinted(gray, 1)).max() <= 1
    assert np.abs(pixels[12, 12] - tinted(tinted(gray, 1), 0)).max() <= 2
    untouched = ~(first | second)
    untouched[50:, 60:] = False
    assert (pixels[untouched] == 100).all()


def test_many_masks_of_a_large_picture_are_never_all_unpacked(tmp_path: Path, stub: ModuleType) -> None:
    """Case V52, on the way out: 30 masks of 6 megapixels are 180 MB as bytes; no format takes a third of that."""
    width, height, count = 3000, 2000, 30
    Image.new("RGB", (width, height)).save(tmp_path / "a.jpg")
    mask = np.zeros((height, width), np.bool_)
    mask[300:900, 400:1500] = True
    masks = Masks((stub.pack_mask(mask),) * count, (width, height))
    boxes = np.tile(np.array([[400, 300, 420, 320]], np.float32), (count, 1))
    scores = np.linspace(1, 0.5, count).astype(np.float32)
    result = Detections(boxes, scores, np.zeros(count, np.int64), (width, height), masks)
    item, out = Item(0, str(tmp_path / "a.jpg"), "a.jpg", "a"), OutputFolder(tmp_path)
    tracemalloc.start()
    row = to_row(item, result, sha256="", labels=LABELS)
    record = Record(item, row, result)
    for sink in (
        AnnotatedSink(out, DecodeOptions()),
        CocoSink(out, LABELS, None, masks=True),
        CropsSink(out, DecodeOptions()),
        CsvSink(out, "segment"),
        MaskPngSink(out, LABELS),
        TableSink(out, "segment"),
        YoloSink(out, LABELS, outlines=True),
    ):
        tracemalloc.reset_peak()
        sink.write(record)
        sink.finish(1, rows_of(record))
        assert tracemalloc.get_traced_memory()[1] < 60 << 20, type(sink).__name__
    tracemalloc.stop()
