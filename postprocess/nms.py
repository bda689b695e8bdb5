"""Greedy class-aware non-maximum suppression in NumPy, decision for decision that of torchvision."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vtk.postprocess.results import FloatArray, IntArray


def batched_nms(
    xyxy: FloatArray, scores: FloatArray, class_ids: IntArray, *, iou_threshold: float, max_detections: int
) -> IntArray:
    """Indices of the boxes kept, by falling score; equal scores keep their order.

    xyxy: (N, 4) float32. scores: (N,). class_ids: (N,). A box is dropped when its IoU with a kept box of the same class
    is strictly above `iou_threshold`. IoU is computed in float32 as torchvision.ops.nms does, and a pair of empty boxes
    (0 / 0) does not suppress. Stops at `max_detections`, which changes nothing in what is kept before.
    """
    by_class = np.lexsort((-scores, class_ids))  # runs of one class, each by falling score: a rival is in one slice
    corners, classes = np.ascontiguousarray(xyxy[by_class].T), class_ids[by_class]
    run_end = np.searchsorted(classes, classes, side="right")
    limit = np.float64(iou_threshold)  # a Python float would be rounded to float32 first, which torchvision does not do
    alive = np.ones(len(scores), dtype=np.bool_)
    kept: list[int] = []
    for place in np.lexsort((by_class, -scores[by_class])):
        if len(kept) == max_detections:
            break
        if alive[place]:
            kept.append(int(by_class[place]))
            rivals = slice(place + 1, run_end[place])
            alive[rivals] &= ~(iou_of_one(corners[:, place], corners[:, rivals]) > limit)
    return np.array(kept, dtype=np.int64)


def iou_of_one(box: FloatArray, others: FloatArray) -> npt.NDArray[np.float32]:
    """IoU of one box (4,) with others (4, N), both xyxy; NaN where both are empty."""
    x1, y1, x2, y2 = others
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        width = np.maximum(np.minimum(box[2], x2) - np.maximum(box[0], x1), 0)
        height = np.maximum(np.minimum(box[3], y2) - np.maximum(box[1], y1), 0)
        intersection = width * height
        area = (box[2] - box[0]) * (box[3] - box[1])
        ratio: npt.NDArray[np.float32] = intersection / (area + (x2 - x1) * (y2 - y1) - intersection)
    return ratio
