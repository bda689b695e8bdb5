"""The mask of one object that was pointed at (SAM3's tracker, as SAM 2): which of the model's candidates is taken.

Source: facebookresearch/sam3. One point leaves open how much of what it lies on is meant: of the candidates made for
that case the one with the highest estimated IoU is taken (`_use_multimask` of sam3_tracker_base.py; a box counts as two
points). More points are answered by the first candidate, unless it hangs on small changes of its values: then as for
one point (`_dynamic_multimask_via_stability` of sam/mask_decoder.py). The official demo that also fills holes of up to
256 cells does so on a GPU only; here no hole is filled.
"""

from __future__ import annotations

import numpy as np

from vtk.errors import BackendError
from vtk.postprocess.raw import RawOutputs, take
from vtk.postprocess.results import FloatArray
from vtk.postprocess.segment import MASK_THRESHOLD, Queries

MASKS, IOUS = "point_masks", "point_ious"
STABILITY_DELTA = 0.05
MIN_STABILITY = 0.98


def select_mask(outputs: RawOutputs, num_points: int, *, prompt: int = 0) -> Queries:
    """The mask of one object, or nothing where it is empty; its score is the model's own estimate of its IoU.

    `point_masks` (M, h, w) logits over the whole network input, `point_ious` (M,): first the candidate for several
    points. Raises BackendError for an output that is missing, misshapen or not finite.
    """
    masks, ious = take(outputs, MASKS, ndim=3), take(outputs, IOUS, ndim=1)
    if len(masks) != len(ious) or len(masks) < 2:
        raise BackendError(f"The outputs are not of the same masks: {MASKS} {masks.shape}, {IOUS} {ious.shape}.")
    index = _best(masks, ious, num_points)
    found = masks[index : index + 1] if masks[index].max() > MASK_THRESHOLD else masks[:0]
    return Queries(
        masks=found,
        boxes_xyxy=np.zeros((len(found), 4), np.float32),
        scores=ious[index : index + len(found)],
        prompts=np.full(len(found), prompt, np.int64),
        is_pointed=np.ones(len(found), np.bool_),
    )


def _best(masks: FloatArray, ious: FloatArray, num_points: int) -> int:
    if num_points > 1 and stability(masks[0]) >= MIN_STABILITY:
        return 0
    return 1 + int(np.argmax(ious[1:]))


def stability(mask: FloatArray) -> float:
    """Area of what is surely in a mask of logits, as a share of what may be in it; 1 for an empty one."""
    widest = np.count_nonzero(mask > -STABILITY_DELTA)
    return float(np.count_nonzero(mask > STABILITY_DELTA) / widest) if widest else 1.0
