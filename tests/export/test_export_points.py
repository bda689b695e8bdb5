"""A SAM3 with a tracker as a bundle of four graphs, against transformers' `Sam3TrackerModel` of the same weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import vtk
from vtk.bundle import Bundle, file_sha256, read_bundle, write_manifest
from vtk.exporters.lint import lint_file
from vtk.exporters.onnx_rules import MIN_OPSET
from vtk.parts_golden import read_parts_golden
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.predictor import open_segment_predictor
from vtk.segmenting.prompts import Prompt
from vtk.verification import verify

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture(scope="module")
def bundle(sam3_point_bundle: Path) -> Bundle:
    return read_bundle(sam3_point_bundle)


@pytest.fixture(scope="module")
def tracker(sam3_tracker: ModuleType) -> Any:
    return sam3_tracker.make_tracker(GOLDEN)


def asked(tracker: Any, tensor: np.ndarray[Any, Any], clicks: Clicks, geometry: Any, *, several: bool) -> Any:
    """transformers' answer; places in pixels of its input."""
    prompt: dict[str, torch.Tensor] = {}
    if clicks.points:
        places = geometry.points_to_input(np.array(clicks.points)).astype(np.float32)
        prompt |= {"input_points": torch.from_numpy(places)[None, None]}
        prompt |= {"input_labels": torch.tensor(clicks.labels)[None, None]}
    if clicks.box_xyxy is not None:
        box = geometry.boxes_to_input(np.array(clicks.box_xyxy)).astype(np.float32)
        prompt |= {"input_boxes": torch.from_numpy(box)[None, None]}
    with torch.inference_mode():
        return tracker(pixel_values=torch.from_numpy(tensor)[None], multimask_output=several, **prompt)


CASES: Mapping[str, Clicks] = {
    "one": Clicks(((60.0, 40.0),), (1,)),
    "two": Clicks(((60.0, 40.0), (90.0, 30.0)), (1, 0)),
    "box": Clicks(box_xyxy=(20.0, 10.0, 90.0, 70.0)),
    "both": Clicks(((60.0, 40.0),), (1,), (20.0, 10.0, 90.0, 70.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_mask_is_that_of_transformers(bundle: Bundle, tracker: Any, name: str) -> None:
    """The graph within 1e-4 of its values, and the mask in the picture as its processor makes it."""
    picture = np.random.default_rng().integers(0, 256, (90, 120, 3), np.uint8)
    clicks = CASES[name]
    with open_segment_predictor(bundle, backend="ort", threads=1) as predictor:
        embedded = predictor.embed(picture)
        tensor = predictor.images.prepare(picture).tensor
        raw = predictor.decode_points(embedded, clicks)
        found = predictor.segment(embedded, [Prompt(objects=(clicks,))])
    candidates = asked(tracker, tensor, clicks, embedded.geometry, several=True)
    np.testing.assert_allclose(raw["point_masks"][1:], candidates.pred_masks[0, 0], atol=1e-4)
    np.testing.assert_allclose(raw["point_ious"][1:], candidates.iou_scores[0, 0], atol=1e-5)
    np.testing.assert_allclose(raw["point_object"], candidates.object_score_logits[0, 0], atol=1e-5)
    if clicks.num_points == 1:
        best = int(candidates.iou_scores.argmax())
        mask, score = candidates.pred_masks[:, 0, best : best + 1], candidates.iou_scores[0, 0, best]
    else:
        single = asked(tracker, tensor, clicks, embedded.geometry, several=False)
        mask, score = single.pred_masks[:, 0], single.iou_scores[0, 0, 0]
    expected = (F.interpolate(mask, picture.shape[:2], mode="bilinear", align_corners=False) > 0)[0, 0].numpy()
    assert found.masks is not None
    assert 0 < expected.sum() < expected.size
    assert (found.masks[0] != expected).mean() < 1e-3  # pixels within rounding of the border
    assert found.scores.tolist() == pytest.approx([float(score)], abs=1e-5)


def test_the_manifest_names_the_part_and_its_slots(bundle: Bundle) -> None:
    manifest = bundle.manifest
    parts = ["image_encoder", "point_decoder", "text_encoder", "decoder"]
    assert [artifact.part for artifact in manifest.artifacts] == parts
    assert manifest.config["point_slots"] == 8
    assert "point_decoder.weights" in manifest.files
    assert manifest.verify["passed"]
    for artifact in manifest.artifacts:
        report = lint_file(bundle.path(artifact.file))
        assert (report.errors, report.warnings) == ((), ())
        assert not {"If", "Loop", "Scan", "NonZero", "ScatterND", "ScatterElements"} & report.op_counts.keys()


def test_golden_data_of_points_survives_its_files(bundle: Bundle) -> None:
    golden = read_parts_golden(bundle.root)
    assert [clicks.name for clicks in golden.clicks] == ["1 points", "2 points and a box"]
    assert golden.max_difference == 0
    for picture in golden.pictures:
        assert [masks.outputs["point_masks"].shape for masks in picture.clicked] == [(4, 64, 64)] * 2
        assert len(picture.features) == 6


@pytest.fixture
def copy(sam3_point_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sam3_point_bundle, tmp_path / "bundle"))


def sign(root: Path) -> None:
    found = read_bundle(root, check_files=False)
    files = {file: file_sha256(root / file) for file in found.manifest.files}
    write_manifest(root, replace(found.manifest, files=files))


def test_verify_names_the_point_decoder_where_it_differs(copy: Path) -> None:
    report = verify(copy, backend="ort", device="cpu", threads=1)
    assert report.first_failure is None
    assert [check.subject for check in report.checks if check.stage == "point_decoder"] == [
        "point_masks max abs",
        "point_ious max abs",
        "point_object max abs",
        "masks 1 - IoU",
    ]
    values = np.fromfile(copy / "point_decoder.weights", np.float32)
    (values * np.float32(1.01)).tofile(copy / "point_decoder.weights")
    sign(copy)
    failure = verify(copy, backend="ort", device="cpu", threads=1).first_failure
    assert failure is not None
    assert failure.stage == "point_decoder"


def test_a_bundle_from_before_there_were_points_is_read(sam3_bundle: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(sam3_bundle, tmp_path / "bundle"))
    index = root / "golden" / "golden.json"
    data = json.loads(index.read_text())
    assert data.pop("clicks") == []
    index.write_text(json.dumps(data))
    assert read_parts_golden(root).clicks == ()


def test_mixed_holds_and_leaves_the_decoder_of_boxes_in_float32(sam3_tracker: ModuleType, tmp_path: Path) -> None:
    """Verified as it is exported, the twins that round like a GPU included; at the oldest opset."""
    tensors = sam3_tracker.official_tensors(GOLDEN, sam3_tracker.make_tracker(GOLDEN))
    checkpoint = sam3_tracker.write_official(tmp_path, GOLDEN, tensors)
    root = vtk.export(checkpoint, tmp_path / "bundle", precision="mixed", opset=MIN_OPSET)
    manifest = read_bundle(root).manifest
    assert manifest.verify["passed"]
    shares = {artifact.part: float(artifact.builder["half_parameters"]) for artifact in manifest.artifacts}
    assert shares["decoder"] == 0
    assert shares["point_decoder"] > 0.5
    assert shares["image_encoder"] > 0.5
