"""Run lengths of a tile's mask as those of the whole picture, and several as one, without painting any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vtk.postprocess.results import IntArray


def place_runs(counts: IntArray, at_xy: tuple[int, int], tile_wh: tuple[int, int], height: int) -> IntArray:
    """Counts of a tile's mask as runs (R, 2) in a picture of `height` whose pixels are numbered down its columns.

    A run is the number of its first pixel and that after its last. The tile lies with its corner at `at_xy`.
    """
    tile_height = tile_wh[1]
    ends = np.cumsum(counts)
    start, stop = ends[0::2][: len(ends) // 2], ends[1::2]
    filled = stop > start
    start, stop = start[filled], stop[filled]
    first = start // tile_height
    pieces = (stop - 1) // tile_height - first + 1
    run = np.repeat(np.arange(len(start)), pieces)
    column = first[run] + np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    moved = (column + at_xy[0]) * height + at_xy[1] - column * tile_height
    low = np.maximum(start[run], column * tile_height)
    high = np.minimum(stop[run], (column + 1) * tile_height)
    return np.stack([low + moved, high + moved], axis=1)


def merge_runs(runs: Sequence[IntArray], pixels: int) -> IntArray:
    """Counts of the mask that has a pixel where any of `runs` (each (R, 2)) has it; the picture has `pixels`."""
    every = np.concatenate(runs)
    every = every[np.argsort(every[:, 0], kind="stable")]
    start, stop = every[:, 0], np.maximum.accumulate(every[:, 1])
    apart = start[1:] > stop[:-1]
    borders = np.stack([start[np.append(True, apart)], stop[np.append(apart, True)]], axis=1) if len(every) else every
    edges = np.concatenate([[0], borders.ravel(), [pixels]])
    counts = np.diff(edges)
    return counts[:-1] if len(counts) > 1 and counts[-1] == 0 else counts
