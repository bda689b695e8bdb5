"""Distance between what a part of a model gives and what its golden data keeps of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from vtk.engines.base import Array
from vtk.exporters.family import OutputSpec
from vtk.parts_clicks import GoldenMasks
from vtk.parts_golden import BEST, GoldenAnswer, mask_bits, sample
from vtk.postprocess.points import MASKS as POINT_MASKS
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.segment import LOGITS, MASKS, PRESENCE
from vtk.predictor import Row
from vtk.verify_limits import Limits
from vtk.verify_outputs import cosine_distance
from vtk.verify_report import Check

FP32_MASK_DISTANCE = 1e-3
# Kinds without a unit of their own.
_UNITLESS = ("features", "masks")


def compare_output(spec: OutputSpec, wanted: Array | None, came: Array | None, limits: Limits) -> list[Check]:
    """The largest difference between an output and its golden sample; in reduced precision, the angle between them.

    Features and masks have no unit: their difference is relative to their root mean square, where that is above 1. In
    reduced precision scores and boxes are compared as results only.
    """
    if not limits.elementwise and spec.kind not in _UNITLESS:
        return []
    subject, limit = f"{spec.name} max abs", spec.atol
    if not limits.elementwise:
        subject, limit = f"{spec.name} 1 - cosine", limits.cosine_distance
    if wanted is None or came is None:
        return [Check("", subject, np.inf, limit, "the output is missing")]
    a, b = np.asarray(wanted, np.float64).ravel(), np.asarray(sample(came), np.float64).ravel()
    if a.shape != b.shape:
        return [Check("", subject, np.inf, limit, f"shape {came.shape}, where {wanted.shape} was kept")]
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        return [Check("", subject, np.inf, limit, "there are values that are NaN or infinite")]
    if not limits.elementwise:
        return [Check("", subject, float(cosine_distance(a, b)), limit)]
    scale = max(1.0, float(np.sqrt((a**2).mean()))) if spec.kind in _UNITLESS else 1.0
    return [Check("", subject, float(np.abs(a - b).max(initial=0.0)) / scale, limit)]


def compare_masks(answer: GoldenAnswer, row: Row, post: PostRecipe, limits: Limits) -> Check:
    """1 - IoU of the masks that are reported, and of the best queries anyhow, in the decoder's own resolution."""
    subject, limit = "masks 1 - IoU", FP32_MASK_DISTANCE if limits.elementwise else limits.iou_distance
    masks, logits, presence = row.get(MASKS), answer.outputs.get(LOGITS), answer.outputs.get(PRESENCE)
    if masks is None or logits is None or presence is None:
        return Check("", subject, np.inf, limit, "an output is missing")
    bits = mask_bits(masks.astype(np.float32, copy=False))
    if bits.shape != answer.mask_bits.shape:
        return Check("", subject, np.inf, limit, f"masks are {masks.shape}")
    scores = expit(logits.astype(np.float64)) * expit(presence.astype(np.float64))
    count = max(BEST, int(np.count_nonzero(scores > post.score_threshold)))
    distances = [_mask_distance(answer.mask_bits[query], bits[query]) for query in np.argsort(-scores)[:count]]
    return Check("", subject, max(distances), limit)


def compare_point_masks(golden: GoldenMasks, row: Row, limits: Limits) -> Check:
    """1 - IoU of every candidate, in the decoder's own resolution."""
    subject, limit = "masks 1 - IoU", FP32_MASK_DISTANCE if limits.elementwise else limits.iou_distance
    masks = row.get(POINT_MASKS)
    if masks is None:
        return Check("", subject, np.inf, limit, "an output is missing")
    bits = mask_bits(masks.astype(np.float32, copy=False))
    if bits.shape != golden.mask_bits.shape:
        return Check("", subject, np.inf, limit, f"masks are {masks.shape}")
    pairs = zip(golden.mask_bits, bits, strict=True)
    return Check("", subject, max(_mask_distance(wanted, came) for wanted, came in pairs), limit)


def _mask_distance(bits: npt.NDArray[np.uint8], others: npt.NDArray[np.uint8]) -> float:
    """1 - IoU of two packed masks; 0 for two empty ones."""
    both, either = np.bitwise_count(bits & others).sum(), np.bitwise_count(bits | others).sum()
    return float(1 - both / either) if either else 0.0
