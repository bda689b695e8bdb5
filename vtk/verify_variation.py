"""Does the output still depend on the picture? An engine that answers every picture alike can pass a distance limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vtk.engines.base import Array
from vtk.exporters.family import OutputSpec
from vtk.verify_report import Check

MAX_LOSS = 0.5


def compare_variation(
    reference: Sequence[Mapping[str, Array]], rows: Sequence[Mapping[str, Array]], specs: Sequence[OutputSpec]
) -> list[Check]:
    """Share of the reference's variation over the pictures, and of its class entropy, that the engine has lost.

    0 where both vary alike, 1 where the engine gives one answer for all. Outputs that do not vary in the reference are
    not judged.
    """
    checks: list[Check] = []
    for spec in specs:
        wanted, came = _stack(reference, spec.name), _stack(rows, spec.name)
        checks += _loss(f"{spec.name} variation lost", _spread(wanted), _spread(came))
        if spec.kind == "logits":
            checks += _loss(f"{spec.name} class entropy lost", class_entropy(wanted), class_entropy(came), "bits")
    return checks


def class_entropy(logits: npt.NDArray[np.float64]) -> float:
    """Entropy in bits of the best class over all pictures and queries; logits (P, ..., C)."""
    counts = np.bincount(logits.argmax(axis=-1).ravel())
    shares = counts[counts > 0] / counts.sum()
    return float(max(0.0, -(shares * np.log2(shares)).sum()))


def _loss(subject: str, wanted: float, came: float, unit: str = "") -> list[Check]:
    if not wanted > 0:
        return []
    detail = f"{came:.3g} of {wanted:.3g} {unit}".strip()
    return [Check("", subject, max(0.0, 1 - came / wanted), MAX_LOSS, detail)]


def _spread(values: npt.NDArray[np.float64]) -> float:
    """Mean standard deviation over the pictures, after sorting each one's values: query order must not count."""
    return float(np.sort(values.reshape(len(values), -1), axis=1).std(axis=0).mean())


def _stack(rows: Sequence[Mapping[str, Array]], name: str) -> npt.NDArray[np.float64]:
    return np.stack([np.asarray(row[name], dtype=np.float64) for row in rows])
