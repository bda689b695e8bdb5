"""YOLOv8: the best class of each anchor, class-aware NMS, boxes clipped to the picture, as Ultralytics' predict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vtk.errors import BackendError
from vtk.postprocess.boxes import clip_boxes, cxcywh_to_xyxy
from vtk.postprocess.nms import batched_nms
from vtk.postprocess.raw import RawOutputs, class_mask, take
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

OUTPUT = "output0"
MAX_CANDIDATES = 30_000  # `max_nms` of Ultralytics: bounds the time of a picture on which everything fires


def yolo_detections(
    outputs: RawOutputs, geometry: Geometry, recipe: PostRecipe, class_filter: frozenset[int] | None
) -> Detections:
    """`output0` (4 + C, A): cxcywh in pixels of the network input, then C class scores in 0..1, to source pixels.

    A class filter acts after the best class of an anchor is chosen and before NMS, as `classes=` of Ultralytics.
    """
    predictions = take(outputs, OUTPUT, ndim=2)
    num_classes = len(predictions) - 4
    if num_classes < 1:
        raise BackendError(f"Output '{OUTPUT}' must be (4 + classes, anchors), its shape is {predictions.shape}.")
    best_class = predictions[4:].argmax(axis=0)
    best_score = predictions[4:].max(axis=0)
    found = np.flatnonzero((best_score > recipe.score_threshold) & class_mask(num_classes, class_filter)[best_class])
    found = found[np.argsort(-best_score[found], kind="stable")[:MAX_CANDIDATES]]
    xyxy = cxcywh_to_xyxy(predictions[:4, found].T)
    scores, class_ids = best_score[found], best_class[found].astype(np.int64)
    kept = batched_nms(
        xyxy, scores, class_ids, iou_threshold=recipe.iou_threshold, max_detections=recipe.max_detections
    )
    source_h, source_w = geometry.source_hw
    in_source = geometry.boxes_to_source(xyxy[kept].astype(np.float64)).astype(np.float32)
    return Detections(
        xyxy=clip_boxes(in_source, (source_w, source_h)),
        scores=scores[kept],
        class_ids=class_ids[kept],
        resolution_wh=(source_w, source_h),
    )
