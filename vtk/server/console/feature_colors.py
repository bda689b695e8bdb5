"""Dense features as colors: their first three principal components as red, green and blue."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from vtk.postprocess.results import FloatArray

_OVERSAMPLED = 8  # components that are iterated for the three that are wanted
_ITERATIONS = 24
_MARGIN = 1.0  # percent of the patches at either end that a color does not tell apart
_NOISE = 1e-4  # a component that varies less than this share of the first is rounding, and would become confetti


def feature_colors(grids: Sequence[FloatArray]) -> list[npt.NDArray[np.uint8]]:
    """Colors (h, w, 3) uint8 for each grid (h, w, D). All share one basis: the same color is the same feature.

    The picture that the DINO papers show of dense features (Oquab et al. 2023, figure 1), without its mask.
    """
    sizes_hw = [grid.shape[:2] for grid in grids]
    patches = np.concatenate([grid.reshape(-1, grid.shape[-1]) for grid in grids]).astype(np.float64)
    scores = principal_components(patches)
    low, high = np.percentile(scores, [_MARGIN, 100 - _MARGIN], axis=0)
    spread = high - low
    varies = spread > max(_NOISE * spread[0], np.finfo(np.float32).tiny)
    shares = np.where(varies, (scores - low) / np.where(varies, spread, 1.0), 0.5)
    colors = np.rint(shares.clip(0, 1) * 255).astype(np.uint8)
    ends = np.cumsum([h * w for h, w in sizes_hw])[:-1]
    return [part.reshape(h, w, 3) for part, (h, w) in zip(np.split(colors, ends), sizes_hw, strict=True)]


def principal_components(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The first three principal components (N, 3) of rows (N, D); zeros beyond the rank.

    By subspace iteration (Halko et al. 2011, algorithm 4.4): a full decomposition of 4,096 patches of 4,096 numbers
    takes a minute. The sign of each component is that of its largest weight, so that colors do not flip between calls.
    """
    centered = rows - rows.mean(axis=0)
    width = centered.shape[1]
    basis = np.random.default_rng(0).standard_normal((width, min(width, _OVERSAMPLED)))
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(centered.T @ (centered @ basis))[0]
    _, _, rotation = np.linalg.svd(centered @ basis, full_matrices=False)
    weights = basis @ rotation[:3].T
    signs = np.sign(weights[np.abs(weights).argmax(axis=0), np.arange(weights.shape[1])])
    scores: npt.NDArray[np.float64] = centered @ (weights * signs)
    return np.pad(scores, ((0, 0), (0, 3 - scores.shape[1])))


def png_of(grids: Sequence[npt.NDArray[np.uint8]]) -> bytes:
    """One PNG of grids (h, w, 3) of one size, below each other."""
    stream = io.BytesIO()
    Image.fromarray(np.concatenate(grids)).save(stream, "PNG")
    return stream.getvalue()
