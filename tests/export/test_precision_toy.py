"""A trained detector in half precision: the same detections on all pictures, and the same accuracy (case V12)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import vtk
from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.exporters.family import FamilyOptions
from vtk.verify_report import Report

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CHECKPOINT = GOLDEN / "toy_deim.pth"
PICTURES, ANNOTATIONS = GOLDEN / "toy_images", GOLDEN / "toy_annotations.json"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = tuple(json.loads((GOLDEN / "toy_labels.json").read_text()))
    options = FamilyOptions(family="deim", class_names=names)
    out = tmp_path_factory.mktemp("toy") / "fp16"
    return vtk.export(CHECKPOINT, out, batches=[1], precision="fp16", options=options, images=PICTURES)


@pytest.fixture(scope="module")
def report(bundle: Path) -> Report:
    return vtk.verify(bundle, images=PICTURES, checkpoint=CHECKPOINT, annotations=ANNOTATIONS)


def test_detections_of_all_pictures_are_those_of_the_source(report: Report) -> None:
    assert report.first_failure is None
    (f1,) = (check for check in report.checks if check.stage == "pictures" and "F1" in check.subject)
    assert (f1.measured, f1.limit) == (0, 0.01)


def test_v12_accuracy_is_told_side_by_side(report: Report) -> None:
    """Case V12; the values of the source are those that pycocotools gives for the official program."""
    found = {check.subject: check for check in report.checks if check.stage == "accuracy"}
    for name, source in (("AP", 0.7878), ("AP50", 0.9558), ("AP75", 0.9432)):
        check = found[f"batch 1: {name} lost"]
        assert check.detail.startswith(f"source {source:.4f}, artifact 0.")
        assert check.detail.endswith(", 24 pictures")
        assert check.measured <= 0.002


def test_v12_three_pictures_on_the_command_line(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("000.jpg", "001.jpg", "020_exif6.jpg"):
        shutil.copy(PICTURES / name, tmp_path)
    arguments = ["--images", tmp_path, "--checkpoint", CHECKPOINT, "--annotations", ANNOTATIONS]
    assert main(["verify", str(bundle), *map(str, arguments)]) == 0
    line = next(text for text in capsys.readouterr().out.splitlines() if "AP lost" in text)
    assert "accuracy" in line
    assert "source" in line
    assert "artifact" in line
    assert "3 pictures" in line


def test_annotations_need_the_source(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(bundle), "--annotations", str(ANNOTATIONS)]) == 2
    assert "--checkpoint FILE" in capsys.readouterr().err


def test_annotations_of_other_pictures_or_classes_are_told(bundle: Path, tmp_path: Path) -> None:
    data = json.loads(ANNOTATIONS.read_text())
    other = tmp_path / "other.json"
    for change, told in (
        ({"images": [], "annotations": []}, "say nothing about 000.jpg"),
        ({**data, "annotations": [{**data["annotations"][0], "category_id": 99}]}, "KeyError: 99"),
        ({"images": 3}, "not COCO detections"),
    ):
        other.write_text(json.dumps(change))
        with pytest.raises(vtk.errors.InputError, match=told):
            vtk.verify(bundle, images=PICTURES, checkpoint=CHECKPOINT, annotations=other)


def test_8_bits_at_several_batch_sizes_whose_graphs_name_their_values_differently(tmp_path: Path) -> None:
    """At batch 1 and 2 the exporter names inputs of the decoder's layers differently: each graph is calibrated."""
    arguments = [
        "--family",
        "deim",
        "--batch",
        "1,2",
        "--precision",
        "int8",
        "--calibrate",
        PICTURES,
        "--max-drop",
        0.1,
    ]
    assert main(["export", str(CHECKPOINT), "-o", str(tmp_path / "int8"), *map(str, arguments)]) == 0
    graphs = read_bundle(tmp_path / "int8").manifest.artifacts
    assert [graph.batch for graph in graphs] == [1, 2]
    assert all(float(graph.builder["quantized_parameters"]) > 0.9 for graph in graphs)
