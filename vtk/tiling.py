"""Where the tiles of a large picture lie.

The idea is that of SAHI (Akyon et al. 2022, "Slicing Aided Hyper Inference and Fine-tuning for Small Object
Detection"): small objects keep their pixels where the whole picture would be shrunk to the network's input.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vtk.errors import UsageError
from vtk.postprocess.merge_tiles import TileBox

MIN_SIZE = 32
MAX_OVERLAP = 0.9


@dataclass(frozen=True)
class Tiling:
    """size: side of a tile in pixels of the picture. overlap: at least this share of it is common to two neighbors.

    max_detections: of the whole picture, None for no limit beyond the model's own, which holds for each tile.
    """

    size: int
    overlap: float
    max_detections: int | None = None

    def __post_init__(self) -> None:
        if self.size < MIN_SIZE:
            raise UsageError(f"A tile must have a side of at least {MIN_SIZE} pixels, got {self.size}.")
        if not 0 <= self.overlap <= MAX_OVERLAP:
            raise UsageError(f"The overlap of tiles must be from 0 to {MAX_OVERLAP}, got {self.overlap}.")

    def boxes(self, width: int, height: int) -> list[TileBox]:
        """(x0, y0, x1, y1) of each tile, row by row: all of one size, evenly spread, covering the picture.

        A side of the picture that is not longer than a tile is taken as it is.
        """
        return [(x0, y0, x1, y1) for y0, y1 in self._spans(height) for x0, x1 in self._spans(width)]

    def _spans(self, length: int) -> list[tuple[int, int]]:
        if length <= self.size:
            return [(0, length)]
        common = min(self.size - 1, math.ceil(self.overlap * self.size))
        steps = -(-(length - self.size) // (self.size - common))
        starts = [step * (length - self.size) // steps for step in range(steps + 1)]
        return [(start, start + self.size) for start in starts]
