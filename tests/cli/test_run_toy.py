"""`vtk run` with the trained toy detector finds what the official code found, from files of every kind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vtk.cli.main import main

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
PICTURES = sorted(path.name for path in (GOLDEN / "toy_images").iterdir())
MIN_IOU = 0.99
MAX_SCORE_GAP = 0.005
# A score this close to the threshold may fall on either side of it.
THRESHOLD, MARGIN = 0.3, 0.01

Found = tuple[int, float, npt.NDArray[np.float64]]
RunToy = Callable[..., Path]


@pytest.fixture(scope="module")
def run_toy(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> RunToy:
    def run(*arguments: str | Path) -> Path:
        out = tmp_path_factory.mktemp("run") / "out"
        assert main(["run", str(toy_bundle), *map(str, arguments), "-o", str(out)]) == 0
        return out

    return run


@pytest.fixture(scope="module")
def toy_out(run_toy: RunToy) -> Path:
    truth = GOLDEN / "toy_annotations.json"
    formats = "jsonl,coco,yolo,annotated,csv,parquet,crops,html"
    return run_toy(GOLDEN / "toy_images", "--format", formats, "--coco-images", truth)


def by_picture(results: list[dict[str, Any]]) -> dict[str, list[Found]]:
    images = json.loads((GOLDEN / "toy_annotations.json").read_text())["images"]
    names = {image["id"]: image["file_name"] for image in images}
    found: dict[str, list[Found]] = {name: [] for name in names.values()}
    for item in results:
        x, y, width, height = item["bbox"]
        box = np.array([x, y, x + width, y + height])
        found[names[item["image_id"]]].append((item["category_id"], item["score"], box))
    return found


def iou(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    overlap = np.prod(np.maximum(0, np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])))
    return float(overlap / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - overlap))


def unmatched(wanted: list[Found], offered: list[Found]) -> list[Found]:
    """Those clearly above the threshold with no partner of their class, place and score; each partner serves once."""
    rest = list(offered)
    missing = []
    for found in wanted:
        fits = [
            other
            for other in rest
            if other[0] == found[0] and abs(other[1] - found[1]) <= MAX_SCORE_GAP and iou(other[2], found[2]) >= MIN_IOU
        ]
        if fits:
            best = max(fits, key=lambda other: iou(other[2], found[2]))
            rest = [other for other in rest if other is not best]
        elif found[1] > THRESHOLD + MARGIN:
            missing.append(found)
    return missing


@pytest.mark.parametrize("name", PICTURES)
def test_detections_are_those_of_the_official_code(toy_out: Path, name: str) -> None:
    """JPEG, PNG, EXIF-rotated, gray and RGBA files alike."""
    expected = by_picture(json.loads((GOLDEN / "toy_expected.json").read_text()))[name]
    found = by_picture(json.loads((toy_out / "coco_results.json").read_text()))[name]
    assert unmatched(expected, found) == []
    assert unmatched(found, expected) == []


def test_the_comparison_notices_an_ignored_orientation(toy_out: Path) -> None:
    ignored = by_picture(json.loads((GOLDEN / "toy_expected_exif_ignored.json").read_text()))["020_exif6.jpg"]
    found = by_picture(json.loads((toy_out / "coco_results.json").read_text()))["020_exif6.jpg"]
    assert ignored
    assert unmatched(ignored, found)


def test_all_kinds_of_files_are_among_the_pictures() -> None:
    assert {"020_exif6.jpg", "021_gray.jpg", "022_rgba.png", "000.jpg", "003.png"} <= set(PICTURES)


def test_picture_sizes_are_those_of_the_ground_truth(toy_out: Path) -> None:
    truth = json.loads((GOLDEN / "toy_annotations.json").read_text())
    assert json.loads((toy_out / "coco.json").read_text())["images"] == truth["images"]


def test_every_format_tells_the_same(toy_out: Path) -> None:
    rows = [json.loads(line) for line in (toy_out / "results.jsonl").read_text().splitlines()]
    assert [row["file_name"] for row in rows] == PICTURES
    results = json.loads((toy_out / "coco_results.json").read_text())
    table = pq.read_table(toy_out / "detections.parquet").to_pylist()
    assert sum(len(row["detections"]) for row in rows) == len(results)
    for row in rows:
        lines = (toy_out / f"yolo/labels/{row['output']}.txt").read_text().splitlines()
        assert len(lines) == len(row["detections"])
        for line, item in zip(lines, row["detections"], strict=True):
            x, y, width, height = np.array(line.split()[1:5], float)
            limits = np.array([row["width"], row["height"]] * 2)
            box = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2]) * limits
            assert np.abs(box - np.clip(item["bbox_xyxy"], 0, limits)).max() < 2e-3
        suffix = Path(row["file_name"]).suffix
        with Image.open(toy_out / f"annotated/{row['output']}{suffix}") as made:
            assert made.size == (row["width"], row["height"])
        inside = [item for item in row["detections"] if has_pixels(item["bbox_xyxy"], row)]
        folder = toy_out / f"crops/{row['output']}"
        assert len(list(folder.iterdir()) if folder.exists() else []) == len(inside)
        lines = [line for line in table if line["index"] == row["index"] and line["score"] is not None]
        assert [(line["class_id"], np.float32(line["score"])) for line in lines] == [
            (item["class_id"], np.float32(item["score"])) for item in row["detections"]
        ]
    assert len((toy_out / "detections.csv").read_text().splitlines()) == len(table) + 1
    assert (toy_out / "report.html").read_text().count("data:image/jpeg;base64") == len(rows)


def has_pixels(xyxy: list[float], row: dict[str, Any]) -> bool:
    left, top, right, bottom = xyxy
    return right > 0 and bottom > 0 and left < row["width"] and top < row["height"]


def detections(out: Path) -> list[Any]:
    return [json.loads(line)["detections"] for line in (out / "results.jsonl").read_text().splitlines()]


def test_batch_1_gives_what_batch_8_gives(run_toy: RunToy, toy_out: Path) -> None:
    single = run_toy(GOLDEN / "toy_images", "--batch", "1")
    for one, eight in zip(detections(single), detections(toy_out), strict=True):
        a = [(item["class_id"], item["score"], np.array(item["bbox_xyxy"])) for item in one]
        b = [(item["class_id"], item["score"], np.array(item["bbox_xyxy"])) for item in eight]
        assert unmatched(a, b) == unmatched(b, a) == []


@pytest.mark.parametrize(
    ("suffix", "options"), [(".bmp", {}), (".tif", {}), (".webp", {"lossless": True}), (".jpg", {"format": "PNG"})]
)
def test_equal_pixels_in_another_file_give_equal_results(
    run_toy: RunToy, tmp_path: Path, suffix: str, options: dict[str, Any]
) -> None:
    with Image.open(GOLDEN / "toy_images/003.png") as picture:
        picture.convert("RGB").save(tmp_path / f"other{suffix}", **options)
    out = run_toy(GOLDEN / "toy_images/003.png", tmp_path / f"other{suffix}", "--batch", "1")
    first, second = detections(out)
    assert first
    assert first == second
