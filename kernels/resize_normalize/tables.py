"""Which source pixels make up each pixel of the network input along one axis, and with which weights: Pillow's fixed-
point resampling as tables.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Filter: TypeAlias = Literal["pil_bilinear", "pil_bicubic"]
Floats: TypeAlias = npt.NDArray[np.float64]

# Pillow's Resample.c: 32 bits less 8 of the pixel and 2 of headroom for the overshoot of bicubic.
PRECISION_BITS = 22
SUPPORT = {"pil_bilinear": 1.0, "pil_bicubic": 2.0}
SHARPNESS = -0.5  # Pillow's parameter `a` of bicubic
TABLE_HEAD = 2  # of a table's row, before the weights: the first source pixel, and how many there are


def y_comes_first(source_hw: tuple[int, int], resized_hw: tuple[int, int]) -> bool:
    """Which of the two passes Pillow does first, with a rounding between them. Before Pillow 13 that was always x."""
    fewer_rows, fewer_columns = (source - resized for source, resized in zip(source_hw, resized_hw, strict=True))
    return fewer_rows > 0 and fewer_rows > 2 * fewer_columns


@lru_cache(maxsize=256)
def axis_table(source: int, resized: int, offset: int, length: int, interpolation: Filter) -> npt.NDArray[np.int32]:
    """(length, 2 + K) of one axis, read-only, as `precompute_coeffs` and `normalize_coeffs_8bpc` of Resample.c.

    Of each input pixel: the first source pixel, how many there are (none in a border), and their weights times 2^22.

    The order of the float64 operations is Pillow's, so that the weights are equal to the last bit.
    """
    place = np.arange(length, dtype=np.int64) - offset
    inside = (place >= 0) & (place < resized)
    scale = source / resized
    stretch = max(scale, 1.0)
    support = SUPPORT[interpolation] * stretch
    center = (place + 0.5) * scale
    first = np.maximum((center - support + 0.5).astype(np.int64), 0)
    count = np.minimum((center + support + 0.5).astype(np.int64), source) - first
    first, count = np.where(inside, first, 0), np.where(inside, count, 0)
    tap = np.arange(max(1, count.max(initial=0)))
    weights = _filter((tap + first[:, None] - center[:, None] + 0.5) * (1.0 / stretch), interpolation)
    weights = np.where(tap < count[:, None], weights, 0.0)
    # A running sum, as a plain one would pair its terms.
    total = np.add.accumulate(weights, axis=1)[:, -1:]
    weights = np.divide(weights, total, out=weights, where=total != 0)
    fixed = np.trunc(weights * (1 << PRECISION_BITS) + np.copysign(0.5, weights))
    table = np.concatenate([first[:, None], count[:, None], fixed], axis=1).astype(np.int32)
    table.flags.writeable = False
    return table


def _filter(x: Floats, interpolation: Filter) -> Floats:
    x = np.abs(x)
    if interpolation == "pil_bilinear":
        return np.maximum(1.0 - x, 0.0)
    near = ((SHARPNESS + 2.0) * x - (SHARPNESS + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * SHARPNESS
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
