"""`vtk verify` on a bundle in parts names the first part that differs (case V28)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtk.bundle import file_sha256, read_bundle, write_manifest
from vtk.errors import BundleError, UsageError
from vtk.exporters.family import OutputSpec
from vtk.parts_compare import compare_output
from vtk.parts_golden import SAMPLE, mask_bits, read_parts_golden, sample
from vtk.segmenting.embedded import EmbeddedPicture
from vtk.segmenting.predictor import SegmentPredictor
from vtk.segmenting.prompts import Prompt
from vtk.verification import verify
from vtk.verify_limits import FP16, FP32
from vtk.verify_report import Check, Report

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
STAGES = [
    "files",
    "reference",
    "decode",
    "preprocess",
    "tokenize",
    "image_encoder",
    "text_encoder",
    "decoder",
    "results",
]


@pytest.fixture
def copy(sam3_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sam3_bundle, tmp_path / "bundle"))


def sign(root: Path) -> None:
    """A manifest that fits the files as they are now."""
    bundle = read_bundle(root, check_files=False)
    files = {file: file_sha256(root / file) for file in bundle.manifest.files}
    write_manifest(root, replace(bundle.manifest, files=files))


def first_failure(root: Path) -> Check:
    report = verify(root, backend="ort", device="cpu", threads=1, batches=[1])
    assert report.first_failure is not None, "every check passed"
    return report.first_failure


def scale_weights(part: str, factor: float) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        values = np.fromfile(root / f"{part}.weights", np.float32)
        (values * np.float32(factor)).tofile(root / f"{part}.weights")

    return change


def swap_words(root: Path) -> None:
    path = root / "tokenizer" / "vocab.json"
    words = json.loads(path.read_text())
    words["person</w>"], words["visual</w>"] = words["visual</w>"], words["person</w>"]
    path.write_text(json.dumps(words))


def drift(root: Path) -> None:
    path = root / "golden" / "golden.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_difference": 1e-6}))


def test_a_right_bundle_passes_every_stage(copy: Path) -> None:
    report = verify(copy, backend="ort", device="cpu", threads=1)
    assert report.first_failure is None
    assert list(dict.fromkeys(check.stage for check in report.checks)) == STAGES
    assert (report.batches, report.pictures) == ((1, 2), 2)
    assert json.loads((copy / "verify.json").read_text())["passed"]


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("reference", drift),
        ("tokenize", swap_words),
        ("image_encoder", scale_weights("image_encoder", 1.01)),
        ("text_encoder", scale_weights("text_encoder", 1.01)),
        ("decoder", scale_weights("decoder", 1.01)),
    ],
)
def test_the_first_part_that_differs_is_named(copy: Path, stage: str, change: Callable[[Path], None]) -> None:
    change(copy)
    assert first_failure(copy).stage == "files"
    sign(copy)
    failure = first_failure(copy)
    assert failure.stage == stage
    assert failure.measured > failure.limit


@pytest.fixture
def mine(tmp_path: Path, save_picture: Callable[..., Path]) -> Path:
    folder = tmp_path / "mine"
    save_picture(folder / "noise.png", seed=3, size_wh=(60, 40))
    (folder / "page.jpg").write_bytes(b"<html>")
    return folder


def on_pictures(root: Path, images: Path, **options: Any) -> tuple[Report, list[Check]]:
    report = verify(root, images=images, device="cpu", threads=1, **{"backend": "ort", **options})
    return report, [check for check in report.checks if check.stage == "pictures"]


def test_pictures_of_the_user_are_compared_between_batches(copy: Path, mine: Path) -> None:
    report, found = on_pictures(copy, mine)
    subjects = [check.subject for check in found]
    assert sum("image_encoder, batch 2: fpn_0" in subject for subject in subjects) == 1
    assert all(subject.startswith("against batch 1: ") for subject in subjects[:-1])
    assert all(check.passed for check in found[:-1])
    assert report.first_failure == found[-1]
    assert (found[-1].subject, found[-1].detail[:10]) == ("of 2, do not decode", "page.jpg (")


def test_pictures_of_the_user_are_compared_with_the_source_model(copy: Path, mine: Path, sam3_bundle: Path) -> None:
    source = sam3_bundle.parent / "sam3_small.pt"
    _, found = on_pictures(copy, mine, checkpoint=source, batches=[1])
    stages = dict.fromkeys(check.subject.split(": ")[1].split(",")[0] for check in found[:-1])
    assert list(stages) == ["image_encoder", "text_encoder", "decoder", "results"]
    assert all(check.passed for check in found[:-1])
    assert all(0 <= check.measured < np.inf for check in found)
    assert max(check.measured for check in found[:-1]) > 0, "nothing but the same engine was compared"


def test_the_first_part_that_differs_on_own_pictures_is_named(
    copy: Path, mine: Path, sam3_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder that is wrong about this picture alone."""
    whole = SegmentPredictor.decode

    def wrong(self: SegmentPredictor, picture: EmbeddedPicture, prompt: Prompt) -> Any:
        row = whole(self, picture, prompt)
        shift = 1e-2 if picture.geometry.source_hw == (40, 60) else 0
        return {**row, "logits": row["logits"] + np.float32(shift)}

    monkeypatch.setattr(SegmentPredictor, "decode", wrong)
    (mine / "page.jpg").unlink()
    report, _ = on_pictures(copy, mine, checkpoint=sam3_bundle.parent / "sam3_small.pt", batches=[1])
    assert report.first_failure is not None
    assert report.first_failure.stage == "pictures"
    assert report.first_failure.subject == "against the source model: decoder, logits max abs"
    assert "noise.png, 'person'" in report.first_failure.detail


def test_another_engine_is_compared_with_the_processor(copy: Path, mine: Path) -> None:
    (mine / "page.jpg").unlink()
    pytest.importorskip("openvino")
    report, found = on_pictures(copy, mine, backend="openvino", batches=[1])
    assert found[0].subject.startswith("against ONNX Runtime on the processor: image_encoder")
    assert max(check.measured for check in found) > 0
    assert report.passed


def test_pictures_of_the_user_need_something_to_be_compared_with(copy: Path, mine: Path) -> None:
    with pytest.raises(UsageError, match="nothing to compare batch 1 with"):
        on_pictures(copy, mine, batches=[1])
    with pytest.raises(UsageError, match="annotations are for detectors"):
        on_pictures(copy, mine, checkpoint=copy, annotations=copy)


def test_a_checkpoint_that_is_not_the_source_is_refused(copy: Path, mine: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.pt"
    other.write_bytes((GOLDEN / "toy_deim.pth").read_bytes())
    with pytest.raises(UsageError, match="is not the source of"):
        on_pictures(copy, mine, checkpoint=other)


def test_golden_data_that_cannot_be_read_is_one_error(copy: Path) -> None:
    index = copy / "golden" / "golden.json"
    data = json.loads(index.read_text())
    data["pictures"][0]["results"].pop()
    index.write_text(json.dumps(data))
    with pytest.raises(BundleError, match="an answer for each pair"):
        read_parts_golden(copy)
    index.write_text("{")
    with pytest.raises(BundleError, match="cannot be read"):
        read_parts_golden(copy)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("prompts", 1, "boxes", 0), [0.1, 0.2, 0.3]),
        (("prompts", 1, "boxes", 0, 2), "x"),
        (("prompts", 1, "boxes", 0, 2), -1),
        (("prompts", 0, "text"), " "),
        (("pictures", 0, "results", 0, "masks", 0), 7),
        (("pictures", 0, "results", 0, "resolution_wh", 0), 1e400),
        (("pictures", 0, "file"), 7),
        (("clicks",), [{"points": [[0.5, 0.5]], "labels": [2], "box": None}]),
        (("clicks",), [{"points": [0.5, 0.5], "labels": [1], "box": None}]),
        (("made_by",), 7),
    ],
)
def test_golden_data_of_another_form_is_one_error(copy: Path, place: tuple[Any, ...], value: Any) -> None:
    index = copy / "golden" / "golden.json"
    data = inner = json.loads(index.read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    index.write_text(json.dumps(data))
    with pytest.raises(BundleError, match=r"golden data in .* cannot be read"):
        read_parts_golden(copy)


@pytest.mark.parametrize("cut", [0, 10, 4000])
def test_golden_arrays_cut_short_are_one_error(copy: Path, cut: int) -> None:
    arrays = copy / "golden" / "stages.npz"
    arrays.write_bytes(arrays.read_bytes()[:cut])
    with pytest.raises(BundleError, match=r"golden data in .* cannot be read"):
        read_parts_golden(copy)


@pytest.mark.parametrize("value", [None, "x", 3, 10**12])
def test_numbers_of_slots_are_those_of_the_graphs(copy: Path, mine: Path, value: Any) -> None:
    """The manifest only tells them to people."""
    (mine / "page.jpg").unlink()
    bundle = read_bundle(copy)
    names = dict.fromkeys(("context_length", "box_slots", "point_slots"), value)
    write_manifest(copy, replace(bundle.manifest, config={**bundle.manifest.config, **names}))
    report, found = on_pictures(copy, mine)
    assert report.passed
    assert len(found) > 1


@pytest.mark.parametrize(
    "outputs", [[], [{"name": "fpn_0", "kind": "features", "atol": {}, "score_atol": None}], [{"name": 1}], "x"]
)
def test_parts_whose_outputs_mean_nothing_are_an_error(copy: Path, outputs: Any) -> None:
    bundle = read_bundle(copy)
    parts = [dict(part) for part in bundle.manifest.config["parts"]]
    parts[0]["outputs"] = outputs
    write_manifest(copy, replace(bundle.manifest, config={**bundle.manifest.config, "parts": parts}))
    with pytest.raises(BundleError, match="parts in the manifest"):
        verify(copy, backend="ort", device="cpu", threads=1, batches=[1])


def test_a_report_may_name_files_that_are_no_text(copy: Path) -> None:
    bundle = read_bundle(copy)
    write_manifest(copy, replace(bundle.manifest, files={**bundle.manifest.files, "\udce4.bin": "0" * 64}))
    report = verify(copy, backend="ort", device="cpu", threads=1, batches=[1])
    assert report.first_failure is not None
    saved = (copy / "verify.json").read_text(encoding="utf-8")
    assert "\udce4.bin" in json.dumps(json.loads(saved), ensure_ascii=False)


def test_a_sample_meets_every_row_and_column_of_a_large_map() -> None:
    side, channels = 288, 32
    positions = np.arange(channels * side * side).reshape(channels, side, side)
    kept = sample(positions)
    assert SAMPLE / 2 < kept.size <= SAMPLE
    channel, row, column = np.unravel_index(kept, positions.shape)
    assert (len(set(channel)), len(set(row)), len(set(column))) == (channels, side, side)
    assert np.array_equal(sample(positions[0]), positions[0])


@pytest.mark.parametrize(
    ("came", "measured"),
    [
        ([1.0, 2.0], 0.0),
        ([1.0, 2.5], 0.5),
        ([1.0, np.nan], np.inf),
        ([1.0, 2.0, 3.0], np.inf),
        (None, np.inf),
    ],
)
def test_outputs_are_compared_value_by_value(came: list[float] | None, measured: float) -> None:
    other = None if came is None else np.array(came)
    (check,) = compare_output(OutputSpec("logits", "logits", 0.1), np.array([1.0, 2.0]), other, FP32)
    assert check.measured == measured


def test_features_are_compared_by_their_own_size() -> None:
    wanted: npt.NDArray[np.float64] = np.full(4, 100.0)
    (check,) = compare_output(OutputSpec("fpn_0", "features", 1e-3), wanted, wanted + 0.05, FP32)
    assert check.measured == pytest.approx(5e-4)
    (small,) = compare_output(OutputSpec("fpn_0", "features", 1e-3), wanted / 1e4, wanted / 1e4 + 0.05, FP32)
    assert small.measured == pytest.approx(0.05)


def test_in_half_precision_features_are_compared_by_direction_and_scores_as_results() -> None:
    wanted = np.array([3.0, 4.0])
    (check,) = compare_output(OutputSpec("fpn_0", "features", 1e-3), wanted, np.array([4.0, 3.0]), FP16)
    assert (check.measured, check.limit) == (pytest.approx(0.04), FP16.cosine_distance)
    assert compare_output(OutputSpec("logits", "logits", 1e-3), wanted, wanted + 1, FP16) == []


def test_masks_are_kept_by_the_bit() -> None:
    masks = np.random.default_rng(0).normal(size=(3, 5, 7)).astype(np.float32)
    bits = mask_bits(masks)
    assert bits.shape == (3, 5)
    assert np.array_equal(np.unpackbits(bits, axis=1)[:, :35].reshape(masks.shape).astype(bool), masks > 0)
