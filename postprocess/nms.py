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
    order = np.argsort(-scores, kind="stable")
    # Columns instead of rows: each loop step then works on contiguous memory.
    corners, classes = np.ascontiguousarray(xyxy[order].T), class_ids[order]
    kept: list[int] = []
    while order.size and len(kept) < max_detections:
        kept.append(int(order[0]))
        same = np.flatnonzero(classes[1:] == classes[0]) + 1
        overlapping = same[iou_of_one(corners[:, 0], corners[:, same]) > iou_threshold]
        alive = np.ones(order.size, dtype=np.bool_)
        alive[0] = False
        alive[overlapping] = False
        order, corners, classes = order[alive], corners[:, alive], classes[alive]
    return np.array(kept, dtype=np.int64)


def iou_of_one(box: FloatArray, others: FloatArray) -> npt.NDArray[np.float32]:
    """IoU of one box (4,) with others (4, N), both xyxy; NaN where both are empty."""
    x1, y1, x2, y2 = others
    width = np.maximum(np.minimum(box[2], x2) - np.maximum(box[0], x1), 0)
    height = np.maximum(np.minimum(box[3], y2) - np.maximum(box[1], y1), 0)
    intersection = width * height
    area = (box[2] - box[0]) * (box[3] - box[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: npt.NDArray[np.float32] = intersection / (area + (x2 - x1) * (y2 - y1) - intersection)
    return ratio
