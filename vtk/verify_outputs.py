"""Distance between the raw outputs of two runs of one picture, by the kind of each output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from vtk.engines.base import Array
from vtk.exporters.family import OutputSpec
from vtk.postprocess.matching import QueryMatch, match_queries
from vtk.verify_limits import FP32, Limits
from vtk.verify_report import Check

Row: TypeAlias = Mapping[str, Array]
Floats: TypeAlias = npt.NDArray[np.float64]

# Two tokens can tie at the border of the encoder's top-k; then a right engine picks the other one. It is excused where
# neither would ever be reported.
MAX_BORDER_FRACTION = 0.01


def compare_rows(
    reference: Row, row: Row, specs: Sequence[OutputSpec], *, score_threshold: float, limits: Limits = FP32
) -> list[Check]:
    """One check per output and measure. Detector queries are matched first: their order is not a result.

    `score_threshold` is the score under which the recipe reports nothing. A missing output, another shape and NaN
    measure as infinite. Where the limits are not for elements, only the direction of vectors is compared.
    """
    broken = [_broken(reference, row, spec) for spec in specs]
    if any(broken):
        return [check for checks in broken for check in checks]
    if not limits.elementwise:
        pairs = [(reference[spec.name], row[spec.name], spec) for spec in specs]
        return [check for pair in pairs for check in _compare_directions(*pair, limits)]
    kinds = {spec.kind: spec for spec in specs}
    if "boxes_cxcywh" in kinds:
        return _compare_queries(reference, row, kinds["logits"], kinds["boxes_cxcywh"], score_threshold)
    return [check for spec in specs for check in _compare_elements(reference[spec.name], row[spec.name], spec, limits)]


def _broken(reference: Row, row: Row, spec: OutputSpec) -> list[Check]:
    if spec.name not in row:
        return [_check(spec.name, np.inf, spec.atol, "the output is missing")]
    wanted, came = reference[spec.name], row[spec.name]
    if came.shape != wanted.shape:
        return [_check(spec.name, np.inf, spec.atol, f"shape {came.shape}, expected {wanted.shape}")]
    for what, array in (("values", came), ("values to compare with", wanted)):
        if bad := int(np.count_nonzero(~np.isfinite(_floats(array)))):
            return [_check(spec.name, np.inf, spec.atol, f"{bad} {what} of {array.size} are NaN or infinite")]
    return []


def _compare_directions(reference: Array, came: Array, spec: OutputSpec, limits: Limits) -> list[Check]:
    """Cosines where the output is vectors; for others only that `_broken` has found nothing."""
    if spec.kind not in ("embedding", "tokens"):
        return [_check(f"{spec.name} NaN or infinite", 0, 0)]
    distance = cosine_distance(_floats(reference), _floats(came)).max()
    return [_check(f"{spec.name} 1 - cosine", distance, limits.cosine_distance)]


def _compare_elements(reference: Array, came: Array, spec: OutputSpec, limits: Limits) -> list[Check]:
    wanted, other = _floats(reference), _floats(came)
    if spec.kind == "yolo":
        scores = spec.atol if spec.score_atol is None else spec.score_atol
        error = np.abs(wanted - other)
        return [
            _check(f"{spec.name} boxes max abs", error[:4].max(initial=0.0), spec.atol),
            _check(f"{spec.name} scores max abs", error[4:].max(initial=0.0), scores),
        ]
    checks = [_check(f"{spec.name} max abs", np.abs(wanted - other).max(initial=0.0), spec.atol)]
    if spec.kind in ("embedding", "tokens"):
        checks += _compare_directions(reference, came, spec, limits)
    return checks


def cosine_distance(a: Floats, b: Floats) -> Floats:
    """1 - cosine along the last axis; 0 for two zero vectors, 1 where only one is zero."""
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    both_zero = ~a.any(axis=-1) & ~b.any(axis=-1)
    cosine = (a * b).sum(axis=-1) / np.where(norms > 0, norms, 1.0)
    return np.asarray(np.where(both_zero, 0.0, 1.0 - cosine), dtype=np.float64)


def _compare_queries(
    reference: Row, row: Row, logits: OutputSpec, boxes: OutputSpec, score_threshold: float
) -> list[Check]:
    wanted, other = _floats(reference[logits.name]), _floats(row[logits.name])
    match = match_queries(wanted, _floats(reference[boxes.name]), other, _floats(row[boxes.name]))
    excused = _at_border(match, wanted, other, boxes.atol, logits.atol, score_threshold)
    kept = ~excused
    note = f"{excused.sum()} of {len(wanted)} queries at the edge of the selection" if excused.any() else ""
    return [
        _check(f"{boxes.name} max abs, matched", match.box_errors[kept].max(initial=0.0), boxes.atol, note),
        _check(f"{logits.name} max abs, matched", match.logit_errors[kept].max(initial=0.0), logits.atol, note),
    ]


def _at_border(
    match: QueryMatch, wanted: Floats, other: Floats, box_atol: float, logit_atol: float, score_threshold: float
) -> npt.NDArray[np.bool_]:
    far = (match.box_errors > box_atol) | (match.logit_errors > logit_atol)
    best = np.maximum(wanted.max(axis=1), other[match.order].max(axis=1))
    excused = far & (expit(best) < score_threshold)
    few = excused.sum() <= max(1, int(MAX_BORDER_FRACTION * len(wanted)))
    return excused if few else np.zeros_like(excused)


def _check(subject: str, measured: float | np.floating, limit: float, detail: str = "") -> Check:
    return Check("", subject, float(measured), limit, detail)


def _floats(array: Array) -> Floats:
    return np.asarray(array, dtype=np.float64)
