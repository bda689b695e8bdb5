"""COCO's average precision of detections, for the comparison of two forms of one model.

Follows the published procedure (https://cocodataset.org/#detection-eval): IoU 0.50 to 0.95, 101 recall points, the 100
best detections of a class per picture, all areas; crowds match any number of detections and count neither way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtk.postprocess.results import Detections

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)
_RECALLS = np.linspace(0.0, 1.0, 101)
_MAX_PER_CLASS = 100

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Truth:
    """What is in one picture: boxes (N, 4) xyxy in pixels, class indices (N,), and which are crowds (N,)."""

    xyxy: Floats
    class_ids: npt.NDArray[np.int64]
    is_crowd: npt.NDArray[np.bool_]


def average_precision(truths: Sequence[Truth], found: Sequence[Detections]) -> Floats:
    """AP by IoU threshold (10,), the mean over the classes that occur; NaN where none does."""
    classes = sorted({int(index) for truth in truths for index in truth.class_ids[~truth.is_crowd]})
    if not classes:
        return np.full(len(IOU_THRESHOLDS), np.nan)
    return np.asarray(np.mean([_of_class(truths, found, index) for index in classes], axis=0), dtype=np.float64)


def _of_class(truths: Sequence[Truth], found: Sequence[Detections], index: int) -> Floats:
    scores: list[Floats] = []
    hits: list[npt.NDArray[np.bool_]] = []
    ignored: list[npt.NDArray[np.bool_]] = []
    for truth, result in zip(truths, found, strict=True):
        wanted = truth.class_ids == index
        rows = np.flatnonzero(result.class_ids == index)
        rows = rows[np.argsort(-result.scores[rows], kind="stable")][:_MAX_PER_CLASS]
        overlaps = _overlaps(result.xyxy[rows].astype(np.float64), truth.xyxy[wanted], truth.is_crowd[wanted])
        hit, ignore = _match(overlaps, truth.is_crowd[wanted])
        scores.append(result.scores[rows].astype(np.float64))
        hits.append(hit)
        ignored.append(ignore)
    total = sum(int((truth.class_ids[~truth.is_crowd] == index).sum()) for truth in truths)
    order = np.argsort(-np.concatenate(scores), kind="stable")
    hit, ignore = np.concatenate(hits, axis=1)[:, order], np.concatenate(ignored, axis=1)[:, order]
    return np.array([_area(row & ~skip, ~row & ~skip, total) for row, skip in zip(hit, ignore, strict=True)])


def _match(overlaps: Floats, is_crowd: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Per IoU threshold and detection, the best first: whether it found an object, and whether only a crowd."""
    shape = (len(IOU_THRESHOLDS), len(overlaps))
    hit, ignored = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for level, threshold in enumerate(IOU_THRESHOLDS):
        free = ~is_crowd
        for row, overlap in enumerate(overlaps):
            single = np.where(free, overlap, -1.0)
            if single.size and single.max() >= threshold:
                # among equals the last one, as in the reference program
                free[len(single) - 1 - int(single[::-1].argmax())] = False
                hit[level, row] = True
            elif (overlap[is_crowd] >= threshold).any():
                ignored[level, row] = True
    return hit, ignored


def _overlaps(boxes: Floats, others: Floats, is_crowd: npt.NDArray[np.bool_]) -> Floats:
    """(N, M) intersection over union; over the detection's own area where the other is a crowd."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0.0), axis=2)
    own, other = _areas(boxes)[:, None], _areas(others)[None, :]
    whole = np.where(is_crowd[None, :], own, own + other - shared)
    return np.asarray(shared / np.where(whole > 0, whole, 1.0), dtype=np.float64)


def _areas(boxes: Floats) -> Floats:
    sides: Floats = boxes[:, 2:] - boxes[:, :2]
    return np.asarray(sides.prod(axis=1), dtype=np.float64)


def _area(hit: npt.NDArray[np.bool_], miss: npt.NDArray[np.bool_], total: int) -> float:
    """Mean of the largest precision at or beyond each recall point; detections by falling score."""
    right, wrong = np.cumsum(hit), np.cumsum(miss)
    recall = right / total
    precision = right / np.maximum(right + wrong, 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(recall, _RECALLS, side="left")
    reached = np.append(best, 0.0)[np.minimum(places, len(best))]
    return float(reached.mean())
