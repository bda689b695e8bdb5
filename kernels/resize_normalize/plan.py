"""Which source pixels make up each input pixel, and with which weights: Pillow's fixed-point resampling as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Filter: TypeAlias = Literal["pil_bilinear", "pil_bicubic"]
Floats: TypeAlias = npt.NDArray[np.float64]

# Pillow's Resample.c: 32 bits less 8 of the pixel and 2 of headroom for the overshoot of bicubic.
PRECISION_BITS = 22
SUPPORT = {"pil_bilinear": 1.0, "pil_bicubic": 2.0}
SHARPNESS = -0.5  # Pillow's parameter `a` of bicubic
NUM_HEADERS = 7
TABLE_HEAD = 2  # of a table's row, before the weights: the first source pixel, and how many there are


@dataclass(frozen=True)
class Placement:
    """Of one picture: its first byte among the packed pixels, and the size and place of it in the network input.

    offset_xy: where the resized picture lies in the input, in whole pixels; negative cuts off.
    """

    start: int
    source_hw: tuple[int, int]
    resized_hw: tuple[int, int]
    offset_xy: tuple[int, int]


@dataclass(frozen=True, eq=False)
class ResizePlan:
    """The tables of a batch.

    size_hw: the network input. num_bytes: of the packed pixels that it reaches to.
    headers: (B, 7) int64: the first byte, bytes per row, whether y comes first, then for x and for y where the table
    starts and the length of its rows. tables: (L,) int32: for each input pixel along an axis the first source pixel,
    how many there are (none in a border), and their weights times 2^22.
    """

    size_hw: tuple[int, int]
    num_bytes: int
    headers: torch.Tensor
    tables: torch.Tensor

    def to(self, device: torch.device | str) -> ResizePlan:
        """The same plan on a device; from pinned tensors the copies do not wait."""
        headers, tables = (part.to(device, non_blocking=True) for part in (self.headers, self.tables))
        return ResizePlan(self.size_hw, self.num_bytes, headers, tables)


def plan_resize(placements: Sequence[Placement], size_hw: tuple[int, int], interpolation: Filter) -> ResizePlan:
    """The plan of a batch, on the CPU."""
    headers, tables, end, num_bytes = [], [], 0, 0
    for placement in placements:
        height, width = placement.source_hw
        header = [placement.start, 3 * width, int(y_comes_first(placement.source_hw, placement.resized_hw))]
        for axis in (1, 0):  # x first
            offset = placement.offset_xy[1 - axis]
            source, resized = placement.source_hw[axis], placement.resized_hw[axis]
            table = axis_table(source, resized, offset, size_hw[axis], interpolation)
            header += [end, table.shape[1]]
            tables.append(table.ravel())
            end += table.size
        headers.append(header)
        num_bytes = max(num_bytes, placement.start + height * width * 3)
    packed = np.concatenate(tables) if tables else np.zeros(0, np.int32)
    return ResizePlan(
        size_hw, num_bytes, torch.tensor(headers, dtype=torch.int64).view(-1, NUM_HEADERS), torch.from_numpy(packed)
    )


def y_comes_first(source_hw: tuple[int, int], resized_hw: tuple[int, int]) -> bool:
    """Which of the two passes Pillow does first, with a rounding between them. Before Pillow 13 that was always x."""
    fewer_rows, fewer_columns = (source - resized for source, resized in zip(source_hw, resized_hw, strict=True))
    return fewer_rows > 0 and fewer_rows > 2 * fewer_columns


def axis_table(source: int, resized: int, offset: int, length: int, interpolation: Filter) -> npt.NDArray[np.int32]:
    """(length, 2 + K) of one axis, as `precompute_coeffs` and `normalize_coeffs_8bpc` of Pillow's Resample.c.

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
    return np.concatenate([first[:, None], count[:, None], fixed], axis=1).astype(np.int32)


def _filter(x: Floats, interpolation: Filter) -> Floats:
    x = np.abs(x)
    if interpolation == "pil_bilinear":
        return np.maximum(1.0 - x, 0.0)
    near = ((SHARPNESS + 2.0) * x - (SHARPNESS + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * SHARPNESS
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))
