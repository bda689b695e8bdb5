"""How far a bundle may be from its source model, by the precision of its graphs.

| precision | outputs compared | 1 - cosine | 1 - F1 | 1 - IoU of pairs | score difference of pairs | AP lost |
|---|---|---|---|---|---|---|
| fp32 | element by element, limits of the family | 1e-4 | 0 | 0.01, each | 0.005, each | 0.002 |
| mixed, fp16 | as results | 1e-3 | 0.01 | 0.10, mean | 0.01, mean | 0.01 |
| bf16 | as results | 1e-3 | 0.01 | 0.10, mean | 0.02, mean | 0.01 |
| int8, fp8 | as results | 1e-2 | 0.05 | 0.15, mean | 0.05, mean | 0.05 |

Reduced precision is judged by results, since a rounded score may select another query and then no order of raw outputs
can be compared. F1 is that of the detections above the score threshold of the recipe, over all pictures; two of them
are a pair from an IoU of 0.5 on, as in COCO, since a box of two pixels that moves by a fifth of one is still found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vtk.bundle import Manifest
from vtk.errors import BundleError


@dataclass(frozen=True)
class Limits:
    """One row of the table above."""

    elementwise: bool
    cosine_distance: float
    f1_loss: float
    iou_distance: float
    score_difference: float
    ap_loss: float


FP32 = Limits(True, 1e-4, 0.0, 0.01, 0.005, 0.002)
FP16 = Limits(False, 1e-3, 0.01, 0.10, 0.01, 0.01)
INT8 = Limits(False, 1e-2, 0.05, 0.15, 0.05, 0.05)
LIMITS: Mapping[str, Limits] = {
    "fp32": FP32,
    "mixed": FP16,
    "fp16": FP16,
    "bf16": Limits(False, 1e-3, 0.01, 0.10, 0.02, 0.01),
    "int8": INT8,
    "fp8": INT8,
}


def precision_of(manifest: Manifest) -> str:
    """Of the ONNX graphs, which all engines of a bundle are built from. Raises BundleError for more than one."""
    found = sorted({artifact.precision for artifact in manifest.artifacts if artifact.backend == "onnx"})
    if len(found) != 1 or found[0] not in LIMITS:
        raise BundleError(f"A bundle holds graphs of one precision, out of {', '.join(LIMITS)}; this one has {found}.")
    return found[0]


def limits_of(manifest: Manifest) -> Limits:
    """The limits that a bundle is verified with; what calibration was allowed to lose is allowed here too."""
    limits = LIMITS[precision_of(manifest)]
    allowed = max((float(artifact.builder.get("max_drop", 0.0)) for artifact in manifest.artifacts), default=0.0)
    return replace(limits, f1_loss=max(limits.f1_loss, allowed), cosine_distance=max(limits.cosine_distance, allowed))
