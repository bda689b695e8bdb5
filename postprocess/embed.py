"""Backbones: the summary vector and the dense features as a grid."""

from __future__ import annotations

from vtk.errors import BackendError
from vtk.postprocess.raw import RawOutputs, take
from vtk.postprocess.results import Embeddings, FloatArray

POOLED = "cls"
PATCHES = "patches"


def embeddings(outputs: RawOutputs, resolution_wh: tuple[int, int], grid_hw: tuple[int, int] | None) -> Embeddings:
    """`cls` (D,) and, where the model has them, `patches` (h * w, D) in row-major order.

    `grid_hw` is the patch grid of the network input; BackendError when it is missing or does not hold the patches.
    """
    pooled = take(outputs, POOLED, ndim=1)
    patches = take(outputs, PATCHES, ndim=2) if PATCHES in outputs else None
    return Embeddings(pooled, None if patches is None else _as_grid(patches, grid_hw), resolution_wh)


def _as_grid(patches: FloatArray, grid_hw: tuple[int, int] | None) -> FloatArray:
    count, dim = patches.shape
    if grid_hw is None or grid_hw[0] * grid_hw[1] != count:
        raise BackendError(
            f"Output '{PATCHES}' has {count} patches, which do not fill the grid {grid_hw} of the bundle."
        )
    return patches.reshape(*grid_hw, dim)
