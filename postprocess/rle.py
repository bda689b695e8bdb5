"""Run lengths of binary masks, packed into printable bytes as COCO packs them.

The pixels of a mask are counted down its columns: first how many are 0, then how many are 1, and so on in turn. Source:
`rleEncode` and `rleToString` of pycocotools (maskApi.c).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vtk.postprocess.results import IntArray

_BITS = 5
_DIGIT = (1 << _BITS) - 1
_SIGN = 1 << (_BITS - 1)
_MORE = 1 << _BITS
_FIRST_CHARACTER = ord("0")


def pack_counts(counts: IntArray) -> bytes:
    """Counts (K,) to bytes: each as its difference from the one before the last, in little-endian digits of 5 bits."""
    rest = counts.astype(np.int64)
    rest[3:] -= counts[1:-2]
    digits, written = [], []
    alive = np.ones(len(rest), np.bool_)
    while alive.any():
        digit = rest & _DIGIT
        rest >>= _BITS
        more = np.where(digit & _SIGN, rest != -1, rest != 0)
        digits.append(digit + more * _MORE + _FIRST_CHARACTER)
        written.append(alive)
        alive = alive & more
    if not digits:
        return b""
    return np.stack(digits, axis=1)[np.stack(written, axis=1)].astype(np.uint8).tobytes()


def unpack_counts(data: bytes) -> IntArray:
    """The inverse of `pack_counts`. Raises ValueError for bytes that it does not write."""
    codes = np.frombuffer(data, np.uint8).astype(np.int64) - _FIRST_CHARACTER
    if codes.size and (codes.min() < 0 or codes.max() >= 2 * _MORE or codes[-1] & _MORE):
        raise ValueError("not the packed run lengths of a COCO mask")
    last = codes < _MORE
    starts = np.flatnonzero(np.concatenate([[True], last[:-1]]))[: np.count_nonzero(last)]
    places = np.arange(len(codes)) - np.repeat(starts, np.diff([*starts, len(codes)]))
    counts = np.add.reduceat((codes & _DIGIT) << (_BITS * places), starts) if codes.size else codes
    counts -= np.where(codes[last] & _SIGN, np.int64(1) << (_BITS * (places[last] + 1)), 0)
    counts[1::2] = np.cumsum(counts[1::2])
    counts[2::2] = np.cumsum(counts[2::2])
    return counts


def paint(counts: IntArray, size_hw: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """The mask (H, W) of these counts. Raises ValueError when they do not add up to its pixels."""
    height, width = size_hw
    if int(counts.sum()) != height * width or (counts < 0).any():
        raise ValueError(f"run lengths of {int(counts.sum())} pixels do not fill a mask of {height} x {width}")
    values = np.arange(len(counts)) % 2 == 1
    mask: npt.NDArray[np.bool_] = np.repeat(values, counts).reshape(width, height).T
    return mask


def paint_tight(counts: IntArray, size_hw: tuple[int, int]) -> tuple[npt.NDArray[np.bool_], int, int]:
    """The smallest part (h, w) of the mask that holds its pixels, (0, 0) if there are none, and its left and top.

    Takes memory for the columns that have pixels, not for the whole. Raises ValueError as `paint` does.
    """
    height, width = size_hw
    edges = np.cumsum(counts)
    if (int(edges[-1]) if len(edges) else 0) != height * width or (counts < 0).any():
        raise ValueError(f"run lengths of {int(counts.sum())} pixels do not fill a mask of {height} x {width}")
    ones = np.flatnonzero(counts[1::2]) * 2 + 1
    if not len(ones):
        return np.zeros((0, 0), np.bool_), 0, 0
    left, right = int(edges[ones[0] - 1]) // height, (int(edges[ones[-1]]) - 1) // height
    inside = np.clip(edges, left * height, (right + 1) * height)
    values = np.arange(len(counts)) % 2 == 1
    columns = np.repeat(values, np.diff(inside, prepend=left * height)).reshape(-1, height)
    rows = np.flatnonzero(columns.any(axis=0))
    part: npt.NDArray[np.bool_] = columns[:, rows[0] : rows[-1] + 1].T
    return part, left, int(rows[0])
