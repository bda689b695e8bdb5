"""Prompted segmentation (SAM3): the score of a query times the presence of what was asked for, and its mask. No NMS.

Source: the post-processor of the official code, which keeps scores above 0.5; that of transformers has the same scores,
keeps those above 0.3 and takes the sigmoid of masks before it enlarges them, which moves their borders a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from vtk.errors import BackendError, UsageError
from vtk.postprocess.masks import masks_in_source
from vtk.postprocess.raw import RawOutputs, take
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections, FloatArray, IntArray

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

MASKS = "masks"
BOXES = "boxes_xyxy"
LOGITS = "logits"
PRESENCE = "presence"
PROMPT = "prompt"
MASK_THRESHOLD = 0.0  # of a logit: a probability of one half

Queries = dict[str, FloatArray | IntArray]


def segment_detections(
    outputs: RawOutputs, geometry: Geometry, recipe: PostRecipe, class_filter: frozenset[int] | None
) -> Detections:
    """What a decoder found for one prompt, or `join_queries` of several, in source pixels, by falling score.

    `masks` (Q, h, w) logits over the whole network input, `boxes_xyxy` (Q, 4) in 0..1 of it, `logits` (Q,), `presence`
    (1,) or (Q,), and perhaps `prompt` (Q,): the index that becomes the class, 0 without it. Boxes are not clipped;
    equal scores keep their order. Raises UsageError for a class filter: prompts are the classes.
    """
    if class_filter is not None:
        raise UsageError("A class filter was given, but this model finds what it is prompted for.")
    found = select_queries(outputs, recipe.score_threshold)
    scores = _scores(found)
    best = np.argsort(-scores, kind="stable")[: recipe.max_detections]
    input_h, input_w = geometry.input_hw
    in_pixels = found[BOXES][best].astype(np.float64) * np.array([input_w, input_h, input_w, input_h])
    source_h, source_w = geometry.source_hw
    return Detections(
        xyxy=geometry.boxes_to_source(in_pixels).astype(np.float32),
        scores=scores[best],
        class_ids=found[PROMPT][best].astype(np.int64),
        resolution_wh=(source_w, source_h),
        masks=masks_in_source(found[MASKS][best].astype(np.float32, copy=False), geometry, threshold=MASK_THRESHOLD),
    )


def select_queries(outputs: RawOutputs, threshold: float, *, prompt: int = 0) -> Queries:
    """The queries whose score is above `threshold`, as such outputs again: what is not kept need not be held.

    Raises BackendError for an output that is missing, misshapen or not finite.
    """
    logits, presence = take(outputs, LOGITS, ndim=1), take(outputs, PRESENCE, ndim=1)
    boxes, masks = take(outputs, BOXES, ndim=2), take(outputs, MASKS, ndim=3)
    count = len(logits)
    if boxes.shape != (count, 4) or len(masks) != count or len(presence) not in (1, count):
        shapes = {BOXES: boxes.shape, MASKS: masks.shape, LOGITS: logits.shape, PRESENCE: presence.shape}
        raise BackendError(f"The outputs are not of the same queries: {shapes}.")
    prompts = np.asarray(outputs[PROMPT]) if PROMPT in outputs else np.full(count, prompt, np.int64)
    queries = {
        MASKS: masks,
        BOXES: boxes,
        LOGITS: logits,
        PRESENCE: np.broadcast_to(presence, count),
        PROMPT: prompts.astype(np.int64),
    }
    keep = np.flatnonzero(_scores(queries) > threshold)
    return {name: values[keep] for name, values in queries.items()}


def join_queries(parts: Sequence[Queries]) -> Queries:
    """The queries of several prompts, at least one, as those of one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _scores(queries: Queries) -> FloatArray:
    scores: FloatArray = expit(queries[LOGITS]) * expit(queries[PRESENCE])
    return scores
