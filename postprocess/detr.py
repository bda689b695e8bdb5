"""DETR family (D-FINE, DEIM, RT-DETRv2): sigmoid, top-k over every (query, class) pair, no NMS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from vtk.errors import BackendError
from vtk.postprocess.boxes import cxcywh_to_xyxy
from vtk.postprocess.raw import RawOutputs, class_mask, take
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

LOGITS = "logits"
BOXES = "boxes"


def detr_detections(
    outputs: RawOutputs, geometry: Geometry, recipe: PostRecipe, class_filter: frozenset[int] | None
) -> Detections:
    """`logits` (Q, C) and `boxes` (Q, 4), cxcywh in 0..1 of the network input, to source pixels.

    One query may appear under several labels, and boxes are not clipped: both as in the post-processor of the official
    code. Equal scores keep the order of (query, class). A class filter acts before the top-k, so that the best
    `max_detections` of the wanted classes are found.
    """
    logits, boxes = take(outputs, LOGITS, ndim=2), take(outputs, BOXES, ndim=2)
    num_queries, num_classes = logits.shape
    if boxes.shape != (num_queries, 4):
        raise BackendError(
            f"Output '{BOXES}' must be ({num_queries}, 4) to fit '{LOGITS}', its shape is {boxes.shape}."
        )
    scores = expit(logits)
    found = np.flatnonzero((scores > recipe.score_threshold) & class_mask(num_classes, class_filter))
    flat = scores.ravel()[found]
    best = np.argsort(-flat, kind="stable")[: recipe.max_detections]
    queries, labels = np.divmod(found[best], num_classes)
    input_h, input_w = geometry.input_hw
    in_pixels = cxcywh_to_xyxy(boxes[queries].astype(np.float64)) * np.array([input_w, input_h, input_w, input_h])
    source_h, source_w = geometry.source_hw
    return Detections(
        xyxy=geometry.boxes_to_source(in_pixels).astype(np.float32),
        scores=flat[best],
        class_ids=labels.astype(np.int64),
        resolution_wh=(source_w, source_h),
    )
