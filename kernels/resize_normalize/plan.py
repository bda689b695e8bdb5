"""The tables of a batch of pictures, packed for one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vtk.kernels.resize_normalize.tables import Filter, axis_table, y_comes_first

NUM_HEADERS = 7


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
