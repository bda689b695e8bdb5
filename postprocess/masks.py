"""Masks of one picture in bounded memory: enlarged, cut at a threshold and run-length coded, a strip at a time.

Two hundred masks of a picture of 24 megapixels are 19 GB as float32 and a few megabytes as run lengths. Only one strip
of one mask is ever held as numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vtk.postprocess.results import FloatArray, IntArray
from vtk.postprocess.rle import pack_counts, paint, unpack_counts

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

BoolArray = npt.NDArray[np.bool_]

STRIP_PIXELS = 1 << 18


@dataclass(frozen=True, eq=False)
class Masks:
    """N masks of one picture, in its size `resolution_wh`. rle: one value each, as COCO packs it (see `rle`)."""

    rle: tuple[bytes, ...]
    resolution_wh: tuple[int, int]

    def __len__(self) -> int:
        return len(self.rle)

    def __getitem__(self, index: int) -> BoolArray:
        """Mask `index`, (H, W)."""
        return paint(unpack_counts(self.rle[index]), self.resolution_wh[::-1])

    def select(self, indices: IntArray) -> Masks:
        """The masks that `indices` name, in their order."""
        return Masks(tuple(self.rle[index] for index in indices), self.resolution_wh)

    @property
    def areas(self) -> IntArray:
        """(N,) pixels that are set."""
        return np.array([unpack_counts(data)[1::2].sum() for data in self.rle], np.int64)

    @property
    def boxes(self) -> FloatArray:
        """(N, 4) float32: left, top, right, bottom around the pixels that are set; zeros where none is."""
        height = self.resolution_wh[1]
        return np.array([_enclosing(unpack_counts(data), height) for data in self.rle], np.float32).reshape(-1, 4)

    def dense(self) -> BoolArray:
        """(N, H, W): one byte per pixel and mask, whatever that takes."""
        width, height = self.resolution_wh
        stack = np.empty((len(self), height, width), np.bool_)
        for index in range(len(self)):
            stack[index] = self[index]
        return stack

    def to_coco(self, index: int) -> dict[str, list[int] | str]:
        """Mask `index` as `segmentation` of a COCO annotation."""
        width, height = self.resolution_wh
        return {"size": [height, width], "counts": self.rle[index].decode("ascii")}


def _enclosing(counts: IntArray, height: int) -> tuple[int, int, int, int]:
    """The box around what run lengths down columns of `height` pixels set."""
    edges = np.cumsum(counts)
    first, last = edges[0:-1:2], edges[1::2] - 1
    first, last = first[last >= first], last[last >= first]
    if not len(first):
        return 0, 0, 0, 0
    crosses = first // height < last // height
    top = np.where(crosses, 0, first % height).min()
    bottom = np.where(crosses, height - 1, last % height).max()
    return int(first[0] // height), int(top), int(last[-1] // height) + 1, int(bottom) + 1


def masks_in_source(values: FloatArray, geometry: Geometry, *, threshold: float) -> Masks:
    """Values (N, h, w) over the whole network input to masks of the source picture: True strictly above `threshold`.

    A pixel's value is bilinear between the centers of the grid and that of the border beyond them, as torch's
    `interpolate(mode="bilinear", align_corners=False)`. Values must be finite.
    """
    source_h, source_w = geometry.source_hw
    rows = _taps(geometry, axis=1, cells=values.shape[1])
    columns = _taps(geometry, axis=0, cells=values.shape[2])
    packed = tuple(pack_counts(_count_runs(mask, rows, columns, threshold)) for mask in values)
    return Masks(packed, (source_w, source_h))


@dataclass(frozen=True, eq=False)
class _Taps:
    """Between which two cells each pixel of an axis lies, and how far from the first: (L,) each."""

    first: IntArray
    second: IntArray
    fraction: FloatArray

    def __getitem__(self, pixels: slice) -> _Taps:
        return _Taps(self.first[pixels], self.second[pixels], self.fraction[pixels])


def _taps(geometry: Geometry, *, axis: int, cells: int) -> _Taps:
    """axis 0 is x, 1 is y. `cells` of the grid cover the network input along it."""
    centers = np.zeros((geometry.source_hw[1 - axis], 2))
    centers[:, axis] = np.arange(len(centers)) + 0.5
    in_input = geometry.points_to_input(centers)[:, axis]
    place = np.clip(in_input * (cells / geometry.input_hw[1 - axis]) - 0.5, 0, cells - 1)
    first = place.astype(np.int64)
    return _Taps(first, np.minimum(first + 1, cells - 1), (place - first).astype(np.float32))


def _blend(lines: FloatArray, taps: _Taps) -> FloatArray:
    """(cells, M) lines to (L, M)."""
    first, between = lines[taps.first], lines[taps.second]
    between -= first
    between *= taps.fraction[:, None]
    between += first
    return between


def _count_runs(mask: FloatArray, rows: _Taps, columns: _Taps, threshold: float) -> IntArray:
    """Run lengths of one mask, down its columns; the first counts zeros."""
    height, width = len(rows.first), len(columns.first)
    changes = [np.zeros(1, np.int64)]
    before = False
    for start, strip in _strips(mask.astype(np.float32, copy=False), rows, columns, threshold):
        flat = strip.ravel()
        changes.append(np.flatnonzero(flat != np.concatenate([[before], flat[:-1]])) + start * height)
        before = bool(flat[-1])
    return np.diff(np.concatenate([*changes, [height * width]]))


def _strips(mask: FloatArray, rows: _Taps, columns: _Taps, threshold: float) -> Iterator[tuple[int, BoolArray]]:
    """Groups of whole columns: the first column's number, and (columns, H) of the mask."""
    height, width = len(rows.first), len(columns.first)
    lines = np.ascontiguousarray(_blend(mask, rows).T)
    # Between values below this, rounding lifts none above the threshold: most of a picture needs no arithmetic.
    nothing = threshold - 8 * np.spacing(np.abs(mask).max())
    peaks = lines.max(axis=1)
    step = max(1, STRIP_PIXELS // height)
    for start in range(0, width, step):
        taps = columns[start : start + step]
        if peaks[taps.first[0] : taps.second[-1] + 1].max() < nothing:
            yield start, np.zeros((len(taps.first), height), np.bool_)
        else:
            yield start, _blend(lines, taps) > threshold
