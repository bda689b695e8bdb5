"""Prompted segmentation (SAM3): the score of a query times the presence of what was asked for, and its mask. No NMS.

Source: the post-processor of the official code, which keeps scores above 0.5; that of transformers has the same scores,
keeps those above 0.3 and takes the sigmoid of masks before it enlarges them, which moves their borders a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit

from vtk.errors import BackendError, UsageError
from vtk.postprocess.masks import BoolArray, masks_in_source
from vtk.postprocess.raw import RawOutputs, take
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections, FloatArray, IntArray

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

MASKS = "masks"
BOXES = "boxes_xyxy"
LOGITS = "logits"
PRESENCE = "presence"
MASK_THRESHOLD = 0.0  # of a logit: a probability of one half


@dataclass(frozen=True, eq=False)
class Queries:
    """What was found for one prompt or several, and is worth keeping of the decoder's outputs.

    masks: (K, h, w) logits over the whole network input. boxes_xyxy: (K, 4) in 0..1 of it. scores: (K,) in 0..1.
    prompts: (K,) which prompt found it. is_pointed: (K,) whether it is an answer to points, which has no box of its own
    and is kept whatever its score.
    """

    masks: FloatArray
    boxes_xyxy: FloatArray
    scores: FloatArray
    prompts: IntArray
    is_pointed: BoolArray


def segment_detections(
    outputs: RawOutputs, geometry: Geometry, recipe: PostRecipe, class_filter: frozenset[int] | None
) -> Detections:
    """The decoder's outputs for one prompt, see `select_queries`, to a result of one class.

    Raises UsageError for a class filter: prompts are the classes.
    """
    if class_filter is not None:
        raise UsageError("A class filter was given, but this model finds what it is prompted for.")
    return to_detections(select_queries(outputs, recipe.score_threshold), geometry, recipe)


def select_queries(outputs: RawOutputs, threshold: float, *, prompt: int = 0) -> Queries:
    """The queries whose score is above `threshold`; what is not kept need not be held.

    `masks` (Q, h, w), `boxes_xyxy` (Q, 4), `logits` (Q,), `presence` (1,): see `Queries`. Raises BackendError for an
    output that is missing, misshapen or not finite.
    """
    logits, presence = take(outputs, LOGITS, ndim=1), take(outputs, PRESENCE, ndim=1)
    boxes, masks = take(outputs, BOXES, ndim=2), take(outputs, MASKS, ndim=3)
    if boxes.shape != (len(logits), 4) or len(masks) != len(logits) or len(presence) != 1:
        shapes = {BOXES: boxes.shape, MASKS: masks.shape, LOGITS: logits.shape, PRESENCE: presence.shape}
        raise BackendError(f"The outputs are not of the same queries: {shapes}.")
    scores = expit(logits) * expit(presence)
    keep = np.flatnonzero(scores > threshold)
    places = np.full(len(keep), prompt, np.int64)
    return Queries(masks[keep], boxes[keep], scores[keep], places, np.zeros(len(keep), np.bool_))


def join_queries(parts: Sequence[Queries]) -> Queries:
    """The queries of several prompts as those of one picture."""
    if not parts:
        nothing = np.zeros((0, 1, 1), np.float32)
        return Queries(nothing, nothing.reshape(0, 4), nothing.ravel(), np.zeros(0, np.int64), np.zeros(0, np.bool_))
    return Queries(
        masks=np.concatenate([part.masks for part in parts]),
        boxes_xyxy=np.concatenate([part.boxes_xyxy for part in parts]),
        scores=np.concatenate([part.scores for part in parts]),
        prompts=np.concatenate([part.prompts for part in parts]),
        is_pointed=np.concatenate([part.is_pointed for part in parts]),
    )


def to_detections(queries: Queries, geometry: Geometry, recipe: PostRecipe) -> Detections:
    """In source pixels, by falling score; class i is prompt i. Boxes are not clipped; equal scores keep their order.

    What was pointed at has the box that encloses its mask, and is left out where no pixel is in it. `max_detections`
    holds for each prompt: what one finds does not depend on what else is asked.
    """
    best = np.argsort(-queries.scores, kind="stable")
    best = best[(queries.scores[best] > recipe.score_threshold) | queries.is_pointed[best]]
    best = best[_places(queries.prompts[best]) < recipe.max_detections]
    is_pointed = queries.is_pointed[best]
    input_h, input_w = geometry.input_hw
    in_pixels = queries.boxes_xyxy[best].astype(np.float64) * np.array([input_w, input_h, input_w, input_h])
    source_h, source_w = geometry.source_hw
    masks = masks_in_source(queries.masks[best], geometry, threshold=MASK_THRESHOLD)
    boxes = geometry.boxes_to_source(in_pixels).astype(np.float32)
    boxes[is_pointed] = masks.select(np.flatnonzero(is_pointed)).boxes
    found = Detections(boxes, queries.scores[best], queries.prompts[best], (source_w, source_h), masks)
    return found if not is_pointed.any() else found.select(~is_pointed | (boxes[:, 2] > boxes[:, 0]))


def _places(prompts: IntArray) -> IntArray:
    """(K,) how many of the same prompt come before each."""
    places = np.empty(len(prompts), np.int64)
    for prompt in np.unique(prompts):
        same = np.flatnonzero(prompts == prompt)
        places[same] = np.arange(len(same))
    return places
