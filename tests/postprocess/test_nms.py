from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import box_iou, nms

from vtk.postprocess.nms import batched_nms, iou_of_one

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def naive(xyxy: Floats, scores: Floats, class_ids: Ints, iou_threshold: float) -> list[int]:
    """The definition, pair by pair: keep a box unless a kept one of its class, better or earlier, covers it."""
    kept: list[int] = []
    for index in sorted(range(len(scores)), key=lambda i: (-scores[i], i)):
        rivals = [other for other in kept if class_ids[other] == class_ids[index]]
        overlaps = box_iou(torch.from_numpy(xyxy[[index]]), torch.from_numpy(xyxy[rivals])).flatten()
        if not (overlaps.double() > iou_threshold).any():
            kept.append(index)
    return kept


def per_class(xyxy: Floats, scores: Floats, class_ids: Ints, iou_threshold: float) -> list[int]:
    """torchvision's own suppression, class by class, as its batched_nms runs it on many boxes."""
    kept: list[int] = []
    for class_id in np.unique(class_ids):
        rows = np.flatnonzero(class_ids == class_id)
        found = nms(torch.from_numpy(xyxy[rows]), torch.from_numpy(scores[rows]), iou_threshold)
        kept.extend(rows[found.numpy()].tolist())
    return sorted(kept, key=lambda i: (-scores[i], i))


def random_boxes(seed: int, count: int, num_classes: int, *, grid: bool) -> tuple[Floats, Floats, Ints]:
    """Crowded boxes; with `grid` on whole pixels and few score levels, so that equal boxes, scores and IoUs occur."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 40, (count, 2))
    sizes = rng.uniform(0, 30, (count, 2))
    scores = rng.uniform(0, 1, count)
    if grid:
        corners, sizes, scores = corners.round(), (sizes / 10).round() * 10, scores.round(1)
    xyxy = np.concatenate([corners, corners + sizes], axis=1).astype(np.float32)
    return xyxy, scores.astype(np.float32), rng.integers(0, num_classes, count)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 60),
    num_classes=st.integers(1, 4),
    iou_threshold=st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.7, 1.0]),
    grid=st.booleans(),
)
def test_equals_torchvision_and_the_definition(
    seed: int, count: int, num_classes: int, iou_threshold: float, grid: bool
) -> None:
    xyxy, scores, class_ids = random_boxes(seed, count, num_classes, grid=grid)
    kept = batched_nms(xyxy, scores, class_ids, iou_threshold=iou_threshold, max_detections=1000).tolist()
    assert kept == per_class(xyxy, scores, class_ids, iou_threshold)
    assert kept == naive(xyxy, scores, class_ids, iou_threshold)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), limit=st.integers(1, 40))
def test_the_limit_is_a_prefix_and_the_result_is_a_fixed_point(seed: int, limit: int) -> None:
    xyxy, scores, class_ids = random_boxes(seed, 50, 3, grid=False)
    everything = batched_nms(xyxy, scores, class_ids, iou_threshold=0.5, max_detections=50)
    limited = batched_nms(xyxy, scores, class_ids, iou_threshold=0.5, max_detections=limit)
    assert limited.tolist() == everything[:limit].tolist()
    again = batched_nms(
        xyxy[everything], scores[everything], class_ids[everything], iou_threshold=0.5, max_detections=50
    )
    assert again.tolist() == list(range(len(everything)))


def test_suppression_is_strictly_above_the_threshold() -> None:
    # 10 x 10 and its left half: IoU is exactly 0.5.
    xyxy = np.array([[0, 0, 10, 10], [0, 0, 5, 10]], dtype=np.float32)
    scores, same = np.array([0.9, 0.8], dtype=np.float32), np.zeros(2, dtype=np.int64)
    for threshold, expected in ((0.5, [0, 1]), (0.499, [0])):
        assert batched_nms(xyxy, scores, same, iou_threshold=threshold, max_detections=9).tolist() == expected


def test_classes_do_not_suppress_each_other() -> None:
    xyxy = np.tile(np.array([[0, 0, 10, 10]], dtype=np.float32), (3, 1))
    scores = np.array([0.5, 0.9, 0.9], dtype=np.float32)
    kept = batched_nms(xyxy, scores, np.array([0, 1, 1]), iou_threshold=0.5, max_detections=9)
    assert kept.tolist() == [1, 0]


def test_empty_boxes_do_not_suppress_and_do_not_warn() -> None:
    xyxy = np.full((2, 4), 3, dtype=np.float32)
    assert np.isnan(iou_of_one(xyxy[0], xyxy[1:].T)).all()
    kept = batched_nms(xyxy, np.ones(2, np.float32), np.zeros(2, np.int64), iou_threshold=0.5, max_detections=9)
    assert kept.tolist() == [0, 1]


def test_no_boxes_give_no_indices() -> None:
    kept = batched_nms(
        np.zeros((0, 4), np.float32),
        np.zeros(0, np.float32),
        np.zeros(0, np.int64),
        iou_threshold=0.5,
        max_detections=9,
    )
    assert kept.shape == (0,)
    assert kept.dtype == np.int64


@pytest.mark.parametrize("num_classes", [1, 80])
def test_a_full_network_output_equals_torchvision(num_classes: int, rng: np.random.Generator) -> None:
    xyxy, scores, class_ids = random_boxes(int(rng.integers(2**32)), 8400, num_classes, grid=False)
    xyxy *= np.float32(10)
    kept = batched_nms(xyxy, scores, class_ids, iou_threshold=0.7, max_detections=300)
    assert kept.tolist() == per_class(xyxy, scores, class_ids, 0.7)[:300]
