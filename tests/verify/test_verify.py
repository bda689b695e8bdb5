"""`vtk verify` finds each kind of fault and names the first stage that differs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.bundle import MANIFEST_NAME, file_sha256, read_bundle, write_manifest
from vtk.engines.base import Array
from vtk.errors import BundleError, MissingDependencyError, UsageError
from vtk.postprocess.detr import BOXES, LOGITS
from vtk.postprocess.recipe import PostRecipe
from vtk.verification import VERIFY_NAME, verify
from vtk.verify_report import Check

Outputs = dict[str, Array]


def failure(root: Path, **options: Any) -> Check:
    """The first stage that differs."""
    report = verify(root, **options)
    assert report.first_failure is not None, "every check passed"
    assert not report.passed
    return report.first_failure


def change_manifest(root: Path, **changes: Any) -> None:
    """A manifest with other content and right hashes."""
    bundle = read_bundle(root, check_files=False)
    files = {file: file_sha256(root / file) for file in bundle.manifest.files}
    write_manifest(root, replace(bundle.manifest, files=files, **changes))


@pytest.mark.parametrize("task", ["detect", "embed", "classify"])
def test_a_right_engine_passes_every_check(
    task: str, make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    root = make_bundle(task)
    run_with(task)
    report = verify(root)
    assert report.first_failure is None
    assert report.batches == (1, 2, 8)
    stages = dict.fromkeys(check.stage for check in report.checks)
    engine = ["rows", "engine", "batches"]
    assert [stage for stage in stages if stage not in engine] == [
        "files",
        "reference",
        "decode",
        "preprocess",
        "postprocess",
        "results",
        "variation",
    ]
    assert set(engine) < set(stages)


def test_the_report_is_kept_in_the_bundle(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    root = make_bundle()
    run_with()
    report = verify(root)
    kept = json.loads((root / VERIFY_NAME).read_text(encoding="utf-8"))
    assert kept["passed"] is True
    assert len(kept["results"]) == len(report.checks)
    assert kept["versions"]["numpy"] == np.__version__
    assert read_bundle(root).manifest.batches == (1, 2, 8)


def test_rows_that_differ_are_named(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    """Case V01: equal rows of one call give different outputs from row 1 on."""

    def fault(batch: int, outputs: Outputs) -> Outputs:
        boxes = outputs[BOXES].copy()
        boxes[1:] += 0.01
        return outputs | {BOXES: boxes}

    root = make_bundle()
    run_with(fault=fault)
    found = failure(root)
    assert found.stage == "rows"
    assert "batch 2: rows differ" in found.subject
    assert "row 1" in found.detail


def test_a_wrong_batch_is_named(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    """Case V02: batch 1 is exact, batch 2 is wrong in all rows alike."""
    root = make_bundle()
    run_with(fault=lambda batch, outputs: {name: array * (1 + (batch == 2)) for name, array in outputs.items()})
    found = failure(root, batches=[1, 2])
    assert found.stage == "engine"
    assert found.subject.startswith("batch 2: ")
    assert verify(root, batches=[1, 8]).passed


def test_the_last_row_of_the_biggest_batch_counts(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    def fault(batch: int, outputs: Outputs) -> Outputs:
        logits = outputs[LOGITS].copy()
        logits[7:] += 0.1
        return outputs | {LOGITS: logits}

    root = make_bundle()
    run_with(fault=fault)
    assert "row 7" in failure(root).detail


def test_the_order_of_queries_is_no_fault(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    """Raw parity of a DETR is meaningless: tied encoder scores are picked in another order."""

    def fault(batch: int, outputs: Outputs) -> Outputs:
        order = np.random.default_rng(batch).permutation(6)
        return {name: array[:, order] for name, array in outputs.items()}

    root = make_bundle()
    run_with(fault=fault)
    assert verify(root).passed


def test_a_missing_detection_fails(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    def fault(batch: int, outputs: Outputs) -> Outputs:
        logits = outputs[LOGITS].copy()
        logits[:, np.argmax(logits.max(axis=2)[0])] = -9
        return outputs | {LOGITS: logits}

    root = make_bundle()
    run_with(fault=fault)
    assert failure(root).stage == "engine"
    missing = [check for check in verify(root).checks if "detections missing" in check.subject and not check.passed]
    assert [check.stage for check in missing] == ["results"] * len(missing)
    assert missing


def test_one_answer_for_every_picture_fails_within_the_limit(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    """Case V05: the class is constant although the largest difference is tiny."""
    root = make_bundle("classify")
    run_with("classify", lambda batch, outputs: {"logits": outputs["logits"] * 0 + np.float32([1e-5, 0, 0])})
    report = verify(root)
    failed = [check for check in report.checks if not check.passed]
    assert report.first_failure is not None
    assert {check.stage for check in failed} == {"variation"}
    assert any("class entropy lost" in check.subject for check in failed)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_overflow_is_a_failure_and_no_crash(
    value: float, make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    def fault(batch: int, outputs: Outputs) -> Outputs:
        broken = outputs[LOGITS].copy()
        broken[0, 0, 0] = value
        return outputs | {LOGITS: broken}

    root = make_bundle(batches=(1,))
    run_with(fault=fault)
    found = failure(root)
    assert "NaN or infinite" in str(found)
    assert json.loads((root / VERIFY_NAME).read_text(encoding="utf-8"))["passed"] is False


def test_a_missing_output_is_named(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    root = make_bundle()
    run_with(fault=lambda batch, outputs: {BOXES: outputs[BOXES]})
    assert f"{LOGITS} inf" in str(failure(root))
    assert "missing" in str(failure(root))


def test_pictures_without_detections_pass(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    """Case V48."""

    def nothing(images: np.ndarray) -> Outputs:
        zeros = np.zeros((len(images), 6, 3), np.float32)
        varied = images.mean(axis=(1, 2, 3))[:, None, None]
        return {LOGITS: zeros - 9 + varied, BOXES: np.full((len(images), 6, 4), 0.5, np.float32)}

    root = make_bundle(model=nothing)
    run_with(model=nothing)
    assert verify(root).first_failure is None


def test_a_reference_that_does_not_repeat_itself_is_told_first(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    root = make_bundle(max_difference=0.012)
    run_with()
    assert failure(root).stage == "reference"


def test_a_changed_file_stops_before_anything_runs(
    make_bundle: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_bundle()
    (root / "model.b2.onnx").write_text("other")
    monkeypatch.setattr("vtk.predictor.open_engine", lambda *_, **__: pytest.fail("an engine was opened"))
    found = failure(root)
    assert found.stage == "files"
    assert "model.b2.onnx" in found.detail


def test_other_pixels_are_told_at_decode(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    root = make_bundle()
    (root / "golden" / "00.jpg").write_bytes((root / "golden" / "02.jpg").read_bytes())
    change_manifest(root)
    run_with()
    found = failure(root)
    assert (found.stage, found.detail) == ("decode", "astronaut_exif6.jpg")


def test_a_picture_that_no_longer_decodes_is_told_at_decode(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    root = make_bundle()
    (root / "golden" / "01.png").write_bytes(b"<html>")
    change_manifest(root)
    run_with()
    assert failure(root).stage == "decode"


@pytest.mark.parametrize(
    ("change", "changes_pixels"),
    [
        ({"mean": (0.485, 0.456, 0.406)}, True),
        ({"std": (0.9, 0.9, 0.9)}, True),
        ({"resize": "letterbox"}, True),
        ({"interpolation": "cv2_linear"}, True),
        ({"pad_value": 0}, False),
    ],
)
def test_another_recipe_is_told_at_preprocess(
    change: dict[str, Any], changes_pixels: bool, make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    """Case V46: verify feeds files, so a normalization that was forgotten cannot hide behind stored tensors."""
    root = make_bundle()
    change_manifest(root, recipe=replace(read_bundle(root).manifest.recipe, **change))
    run_with()
    assert failure(root).stage == "preprocess"
    passed = {check.subject: check.passed for check in verify(root).checks if check.stage == "preprocess"}
    assert passed == {"recipe is another one": False, "gray levels from the golden tensor": not changes_pixels}


def test_another_score_rule_is_told_at_postprocess(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    """Case V28: what looked like lost precision was another postprocess."""
    root = make_bundle()
    change_manifest(root, post=PostRecipe("detr", score_threshold=0.9))
    run_with()
    assert failure(root).stage == "postprocess"


def test_golden_data_that_is_gone_is_an_error(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    root = make_bundle()
    bundle = read_bundle(root)
    (root / "golden" / "stages.npz").unlink()
    files = {file: digest for file, digest in bundle.manifest.files.items() if "stages" not in file}
    write_manifest(root, replace(bundle.manifest, files=files))
    run_with()
    with pytest.raises(BundleError, match="golden"):
        verify(root)


def test_golden_pictures_lie_in_the_bundle(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    root = make_bundle()
    index = root / "golden" / "golden.json"
    index.write_text(index.read_text().replace('"file": "00.jpg"', '"file": "../../secret.jpg"'))
    bundle = read_bundle(root, check_files=False)
    files = {**bundle.manifest.files, "golden/golden.json": file_sha256(index)}
    write_manifest(root, replace(bundle.manifest, files=files))
    run_with()
    with pytest.raises(BundleError, match=r"names '\.\./\.\./secret\.jpg', which is no file of this folder"):
        verify(root)


@pytest.mark.parametrize(
    "change", [{"name": None}, {"kind": "magic"}, {"kind": ["logits"]}, {"atol": "1e-3"}, {"score_atol": []}]
)
def test_outputs_that_mean_nothing_are_an_error(
    change: dict[str, Any], make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    root = make_bundle()
    manifest = read_bundle(root).manifest
    outputs = ({**manifest.outputs[0], **change}, *manifest.outputs[1:])
    write_manifest(root, replace(manifest, outputs=outputs))
    run_with()
    with pytest.raises(BundleError, match="outputs in the manifest"):
        verify(root)


def test_a_folder_without_manifest_is_an_error(make_bundle: Callable[..., Path]) -> None:
    root = make_bundle()
    (root / MANIFEST_NAME).unlink()
    with pytest.raises(BundleError, match="not a bundle"):
        verify(root)


def test_own_pictures_are_compared_between_batches(
    make_bundle: Callable[..., Path],
    run_with: Callable[..., None],
    detector: Callable[[np.ndarray], Outputs],
    tmp_path: Path,
) -> None:
    def wrong_on_white(images: np.ndarray) -> Outputs:
        """Beyond batch 1, and only for a white picture, which no sample picture is."""
        outputs = detector(images)
        white = images.mean(axis=(1, 2, 3)) > 0.95
        if len(images) > 1:
            outputs[BOXES][white] += 0.1
        return outputs

    (tmp_path / "mine" / "deep").mkdir(parents=True)
    Image.new("RGB", (9, 7), "navy").save(tmp_path / "mine" / "navy.png")
    Image.new("RGB", (9, 7), "white").save(tmp_path / "mine" / "deep" / "white.png")
    root = make_bundle(batches=(1, 2))
    run_with()
    report = verify(root, images=tmp_path / "mine")
    assert report.passed
    assert (report.checks[-1].stage, report.checks[-1].subject) == ("pictures", "of 2, do not decode")
    run_with(model=wrong_on_white)
    assert verify(root).passed
    found = failure(root, images=tmp_path / "mine")
    assert found.stage == "pictures"
    assert found.subject.startswith("batch 2 against batch 1: boxes")
    assert "deep/white.png" in found.detail


def test_own_pictures_that_do_not_decode_are_listed_and_the_rest_is_compared(
    make_bundle: Callable[..., Path], run_with: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.jpg").write_bytes(b"<html>")
    Image.new("RGB", (9, 7), "navy").save(tmp_path / "mine" / "b.png")
    (tmp_path / "mine" / "c.png").write_bytes((tmp_path / "mine" / "b.png").read_bytes()[:40])
    root = make_bundle(batches=(1, 2))
    run_with()
    report = verify(root, images=tmp_path / "mine")
    found = [check for check in report.checks if check.stage == "pictures"]
    assert [check.passed for check in found] == [True] * (len(found) - 1) + [False]
    assert "b.png" in found[0].detail
    assert (found[-1].subject, found[-1].measured) == ("of 3, do not decode", 2)
    assert report.first_failure == found[-1]
    assert all(name in found[-1].detail for name in ("a.jpg (", "c.png ("))


def test_own_pictures_none_of_which_decodes_fail(
    make_bundle: Callable[..., Path], run_with: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    for index in range(25):
        (tmp_path / "mine" / f"{index:02}.jpg").write_bytes(b"<html>")
    root = make_bundle(batches=(1, 2))
    run_with()
    failed = failure(root, images=tmp_path / "mine")
    assert (failed.subject, failed.measured) == ("of 25, do not decode", 25)
    assert failed.detail.endswith(" and 5 more")


def test_own_pictures_need_something_to_be_compared_with(
    make_bundle: Callable[..., Path], run_with: Callable[..., None], tmp_path: Path
) -> None:
    """With one batch size and no checkpoint every check of the pictures would be skipped in silence."""
    Image.new("RGB", (9, 7)).save(tmp_path / "mine.png")
    root = make_bundle(batches=(1, 2))
    run_with()
    with pytest.raises(UsageError, match="nothing to compare batch 2 with"):
        verify(root, images=tmp_path / "mine.png", batches=[2])


def test_a_checkpoint_needs_torch(
    make_bundle: Callable[..., Path],
    run_with: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Image.new("RGB", (9, 7)).save(tmp_path / "mine.png")
    run_with()
    monkeypatch.setattr("vtk.requirements.find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(MissingDependencyError, match=r"verify --checkpoint needs the package 'torch'"):
        verify(make_bundle(), images=tmp_path / "mine.png", checkpoint=tmp_path / "tiny.pth")


def test_a_checkpoint_needs_pictures(make_bundle: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--images"):
        verify(make_bundle(), checkpoint=tmp_path / "tiny.pth")


def test_an_unknown_batch_is_an_error(make_bundle: Callable[..., Path], run_with: Callable[..., None]) -> None:
    root = make_bundle()
    run_with()
    with pytest.raises(UsageError, match="no graph for batch 3"):
        verify(root, batches=[3])
