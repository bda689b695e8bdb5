"""Limits by precision: one table, and what is judged by it in reduced precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vtk.verify_limits
from vtk.bundle import read_bundle, write_manifest
from vtk.errors import BundleError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.verification import verify
from vtk.verify_limits import LIMITS, limits_of, precision_of
from vtk.verify_results import compare_found

FP16 = LIMITS["fp16"]
POST = PostRecipe("detr", score_threshold=0.3)


def test_the_documented_table_is_the_one_that_holds() -> None:
    lines = [line for line in (vtk.verify_limits.__doc__ or "").splitlines() if line.startswith("| ")][1:]
    rows = {}
    for line in lines:
        names, compared, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        values = [float(number.split(",")[0]) for number in numbers]
        rows |= {name.strip(): (compared.startswith("element"), *values) for name in names.split(",")}
    table = {
        name: (
            limits.elementwise,
            limits.cosine_distance,
            limits.f1_loss,
            limits.iou_distance,
            limits.score_difference,
            limits.ap_loss,
        )
        for name, limits in LIMITS.items()
    }
    assert rows == table


def detections(count: int, *, shift: float = 0.0, score: float = 0.9, first: int = 0) -> Detections:
    """Boxes of 10 x 10 in a row, from the one with the number `first` on."""
    left = 20.0 * np.arange(first, count) + shift
    zeros = np.zeros_like(left)
    return Detections(
        xyxy=np.stack([left, zeros, left + 10, zeros + 10], axis=1).astype(np.float32),
        scores=np.full(len(left), score, np.float32),
        class_ids=np.zeros(len(left), np.int64),
        resolution_wh=(5000, 10),
    )


def found(reference: list[Detections], results: list[Detections]) -> list[float]:
    return [check.measured for check in compare_found(reference, results, POST, FP16)]


def test_f1_counts_over_all_pictures() -> None:
    reference = [detections(100), detections(100)]
    assert found(reference, reference) == [0, 0, 0]
    loss, _, _ = found(reference, [detections(100), detections(100, first=2)])
    assert loss == pytest.approx(2 / (2 * 198 + 2))
    assert loss < FP16.f1_loss
    loss, _, _ = found(reference, [detections(100), detections(100, first=6)])
    assert loss == pytest.approx(6 / (2 * 194 + 6))
    assert loss > FP16.f1_loss


def test_pairs_need_half_an_overlap_and_their_distance_is_told() -> None:
    loss, distance, gap = found([detections(10)], [detections(10, shift=2, score=0.88)])
    assert loss == 0
    assert distance == pytest.approx(1 - 80 / 120)
    assert gap == pytest.approx(0.02, abs=1e-6)
    assert found([detections(10)], [detections(10, shift=4)])[0] == 1  # IoU 60 / 140


def test_detections_at_the_border_of_the_threshold_count_neither_way() -> None:
    both = detections(10)
    extra = detections(11, first=10, score=0.305)
    joined = Detections(
        xyxy=np.concatenate([both.xyxy, extra.xyxy]),
        scores=np.concatenate([both.scores, extra.scores]),
        class_ids=np.concatenate([both.class_ids, extra.class_ids]),
        resolution_wh=both.resolution_wh,
    )
    assert found([both], [joined])[0] == 0
    assert found([joined], [both])[0] == 0


def test_finding_nothing_where_there_is_something_is_the_worst() -> None:
    empty = detections(0)
    assert found([detections(3)], [empty])[0] == 1
    assert found([detections(3, score=0.301)], [empty])[0] == 1  # excused one by one, but nothing pairs
    assert found([empty], [detections(3)])[0] == 1
    assert found([empty], [detections(3, score=0.301)])[0] == 0
    assert found([empty], [empty])[0] == 0


def labelled(root: Path, *precisions: str) -> Path:
    """The bundle with other precisions in its manifest."""
    manifest = read_bundle(root, check_files=False).manifest
    pairs = zip(manifest.artifacts, precisions * len(manifest.artifacts), strict=False)
    write_manifest(root, replace(manifest, artifacts=tuple(replace(item, precision=name) for item, name in pairs)))
    return root


def test_a_bundle_has_one_precision(make_bundle: Callable[..., Path]) -> None:
    root = make_bundle("detect", (1, 2))
    assert precision_of(read_bundle(root).manifest) == "fp32"
    assert limits_of(read_bundle(labelled(root, "fp16")).manifest) is not None
    for wrong in (("fp16", "fp32"), ("float16",)):
        with pytest.raises(BundleError, match="one precision"):
            precision_of(read_bundle(labelled(root, *wrong)).manifest)


def test_what_calibration_was_allowed_to_lose_is_allowed(make_bundle: Callable[..., Path]) -> None:
    manifest = read_bundle(labelled(make_bundle("detect", (1,)), "int8")).manifest
    artifact = replace(manifest.artifacts[0], builder={"max_drop": "0.3"})
    limits = limits_of(replace(manifest, artifacts=(artifact,)))
    assert (limits.f1_loss, limits.cosine_distance) == (0.3, 0.3)
    assert limits_of(manifest).f1_loss == LIMITS["int8"].f1_loss


def test_small_errors_pass_in_half_precision_and_fail_in_float32(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    """Queries in another order, boxes and logits a little off."""
    root = make_bundle("detect", (1,))
    run_with("detect", lambda batch, outputs: {name: array[:, ::-1] + 2e-3 for name, array in outputs.items()})
    failure = verify(root).first_failure
    assert failure is not None
    assert failure.stage == "engine"
    assert verify(labelled(root, "fp16")).first_failure is None


def test_another_answer_in_one_row_fails_in_half_precision(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    root = labelled(make_bundle("detect", (1, 2)), "fp16")

    def fault(batch: int, outputs: dict[str, Any]) -> dict[str, Any]:
        moved = outputs["boxes"].copy()
        moved[1:] = moved[1:, :, [1, 0, 3, 2]]
        return outputs | {"boxes": moved}

    run_with("detect", fault)
    failure = verify(root).first_failure
    assert failure is not None
    assert failure.stage == "rows"


def test_v05_one_answer_for_all_pictures_fails_in_half_precision(
    make_bundle: Callable[..., Path], run_with: Callable[..., None]
) -> None:
    """Case V05: no limit on a raw output is there to show it."""
    root = labelled(make_bundle("classify", (1,)), "fp16")
    run_with("classify", lambda batch, outputs: {"logits": outputs["logits"] * 0 + np.float32([1e-5, 0, 0])})
    assert {check.stage for check in verify(root).checks if not check.passed} == {"variation"}
