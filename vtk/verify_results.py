"""Distance between what users see: detections, embeddings and classes of two runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from vtk.postprocess.nms import iou_of_one
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Classification, Detections, Embeddings, Result
from vtk.verify_limits import FP32, Limits
from vtk.verify_outputs import cosine_distance
from vtk.verify_report import Check

PAIR_IOU = 0.5
_WRONG_CLASS = 10.0


def compare_results(reference: Result, result: Result, post: PostRecipe, limits: Limits = FP32) -> list[Check]:
    """Checks of one picture; results of another type or picture size measure as infinite.

    Detections in reduced precision are compared over all pictures: see `compare_found`.
    """
    if type(reference) is not type(result) or reference.resolution_wh != result.resolution_wh:
        came, wanted = _describe(result), _describe(reference)
        return [Check("", "kind of result", np.inf, 0.0, f"{came}, expected {wanted}")]
    if isinstance(reference, Detections) and isinstance(result, Detections):
        return _compare_detections(reference, result, post, limits) if limits.elementwise else []
    if isinstance(reference, Embeddings) and isinstance(result, Embeddings):
        distance = cosine_distance(reference.pooled.astype(np.float64), result.pooled.astype(np.float64))
        return [Check("", "embedding 1 - cosine", float(distance), limits.cosine_distance)]
    assert isinstance(reference, Classification)
    assert isinstance(result, Classification)
    return _compare_classes(reference, result, limits)


def compare_found(
    reference: Sequence[Result], results: Sequence[Result], post: PostRecipe, limits: Limits
) -> list[Check]:
    """F1 of the detections of all pictures, and how far pairs are apart in the mean.

    A pair has one class and an IoU of at least `PAIR_IOU`. Detections at the border of what is reported count neither
    way, see `_count_lost`; but where the reference has some and none of them pairs, F1 is 0.
    """
    lost = 0
    ious: list[float] = []
    gaps: list[float] = []
    for wanted, came in zip(reference, results, strict=True):
        if isinstance(wanted, Detections) and isinstance(came, Detections):
            rows, columns, iou = _pair(wanted, came, PAIR_IOU)
            ious += iou.tolist()
            gaps += np.abs(wanted.scores[rows] - came.scores[columns]).tolist()
            lost += _count_lost(wanted, rows, post, limits) + _count_lost(came, columns, post, limits)
    pairs = len(ious)
    to_find = any(isinstance(item, Detections) and len(item) for item in reference)
    loss = lost / (2 * pairs + lost) if pairs else float(to_find or lost > 0)
    return [
        Check("", "1 - F1 of detections", loss, limits.f1_loss, f"{pairs} pairs, {lost} without a partner"),
        Check("", "mean 1 - IoU of pairs", 1 - sum(ious) / pairs if pairs else 0.0, limits.iou_distance),
        Check("", "mean score difference of pairs", sum(gaps) / max(pairs, 1), limits.score_difference),
    ]


def compare_ranks(reference: Sequence[Result], results: Sequence[Result], limits: Limits = FP32) -> list[Check]:
    """How many embeddings have another nearest neighbor among the pictures than in the reference; needs three."""
    wanted = [item.pooled for item in reference if isinstance(item, Embeddings)]
    came = [item.pooled for item in results if isinstance(item, Embeddings)]
    if len(wanted) < 3 or len(wanted) != len(came):
        return []
    similarity, other = _similarity(wanted), _similarity(came)
    rows = np.arange(len(wanted))
    loss = similarity.max(axis=1) - similarity[rows, other.argmax(axis=1)]
    moved = int(np.count_nonzero(~(loss <= limits.cosine_distance)))
    return [Check("", "nearest neighbors that differ", moved, 0, f"of {len(wanted)} pictures")]


def _compare_detections(reference: Detections, result: Detections, post: PostRecipe, limits: Limits) -> list[Check]:
    rows, columns, iou = _pair(reference, result, 0.0)
    scores = np.abs(reference.scores[rows] - result.scores[columns])
    lost = _count_lost(reference, rows, post, limits)
    extra = _count_lost(result, columns, post, limits)
    counts = f"{len(result)} detections, expected {len(reference)}"
    return [
        Check("", "detections missing", lost, 0, counts),
        Check("", "detections too many", extra, 0, counts),
        Check("", "1 - IoU of pairs", float((1 - iou).max(initial=0.0)), limits.iou_distance),
        Check("", "score difference of pairs", float(scores.max(initial=0.0)), limits.score_difference),
    ]


def _pair(
    reference: Detections, result: Detections, min_iou: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """Indices of detections that belong together (one class, overlapping, at least `min_iou`), and their IoU."""
    cost = _match_cost(reference, result)
    rows, columns = linear_sum_assignment(cost)
    iou = _iou(reference.xyxy[rows], result.xyxy[columns]).diagonal()
    paired = (cost[rows, columns] < 1) & (iou >= min_iou)
    return rows[paired], columns[paired], iou[paired]


def _match_cost(reference: Detections, result: Detections) -> npt.NDArray[np.float64]:
    """(N, M) below 1 for boxes that overlap and have one class; the score decides between equal overlaps."""
    distance = 1 - _iou(reference.xyxy, result.xyxy)
    scores = np.abs(reference.scores[:, None] - result.scores[None, :])
    other_class = reference.class_ids[:, None] != result.class_ids[None, :]
    cost = np.where(distance < 1, 0.99 * distance + 0.01 * np.minimum(scores, 0.9), 1.0)
    return np.asarray(cost + _WRONG_CLASS * other_class, dtype=np.float64)


def _iou(boxes: npt.NDArray[np.float32], others: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(N, M); two equal boxes without area overlap fully."""
    table = np.zeros((len(boxes), len(others)))
    for row, box in enumerate(boxes):
        equal = (others == box).all(axis=1)
        table[row] = np.where(equal, 1.0, np.nan_to_num(iou_of_one(box, others.T)))
    return table


def _count_lost(detections: Detections, paired: npt.NDArray[np.intp], post: PostRecipe, limits: Limits) -> int:
    """Detections without a partner, except those whose score is too near the border of what is reported to tell."""
    alone = detections.scores[np.setdiff1d(np.arange(len(detections)), paired)]
    excused = np.abs(alone - post.score_threshold) <= limits.score_difference
    if len(detections) >= post.max_detections:
        excused |= alone - detections.scores.min() <= limits.score_difference
    return int(np.count_nonzero(~excused))


def _compare_classes(reference: Classification, result: Classification, limits: Limits) -> list[Check]:
    if len(reference.scores) != len(result.scores):
        return [Check("", "classes listed", abs(len(reference.scores) - len(result.scores)), 0)]
    wanted, came = _scores_by_class(reference), _scores_by_class(result)
    floors = float(reference.scores.min()), float(result.scores.min())
    classes = sorted(wanted.keys() | came.keys())
    gaps = [abs(wanted.get(index, floors[0]) - came.get(index, floors[1])) for index in classes]
    lead = abs(wanted.get(int(result.class_ids[0]), floors[0]) - float(reference.scores[0]))
    return [
        Check("", "class score difference", max(gaps), limits.score_difference),
        Check("", "lead of the best class lost", lead, limits.score_difference),
    ]


def _scores_by_class(result: Classification) -> dict[int, float]:
    return dict(zip(result.class_ids.tolist(), result.scores.tolist(), strict=True))


def _similarity(vectors: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float64]:
    """(P, P) cosine, -inf on the diagonal."""
    stacked = np.stack(vectors).astype(np.float64)
    unit = stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    table: npt.NDArray[np.float64] = unit @ unit.T
    np.fill_diagonal(table, -np.inf)
    return table


def _describe(result: Result) -> str:
    width, height = result.resolution_wh
    return f"{type(result).__name__} of {width} x {height} pixels"
