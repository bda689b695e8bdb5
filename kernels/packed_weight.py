"""A weight matrix in the byte order of the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.kernels.host_memory import address, aligned_empty
from vtk.kernels.quant_formats import BLOCK_FORMATS, Bytes, q4_k_scales, q4_k_values, q6_k_values
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

Array: TypeAlias = npt.NDArray[Any]

LANES = 16
TILE = 32
# Numbers as in csrc/weight_formats.h.
FORMAT_NUMBERS = {"f32": 0, "f16": 1, "bf16": 2, "int8": 3, "q8_0": 4, "q4_0": 5, "q4_1": 6, "q4_k": 7, "q6_k": 8}


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """(out_features, in_features) in panels of 16 outputs; every stored bit is kept, only the order changes.

    The last panel is padded with zeros. Memory: `values` and `scales` together as much as the stored weight, q4_k 3 %
    more (its 6-bit scales take a byte each). The layout is that of csrc/weight_formats.h.
    """

    format: str
    out_features: int
    in_features: int
    values: Array
    scales: Array

    @property
    def num_bytes(self) -> int:
        """What a product reads of it."""
        return self.values.nbytes + self.scales.nbytes

    @cached_property
    def arguments(self) -> tuple[int, int, int]:
        """The number of its format in the compiled kernels, and the addresses of values and scales."""
        return FORMAT_NUMBERS[self.format], address(self.values), address(self.scales)


def pack(weight: StoredWeight) -> PackedWeight:
    """Reorder a stored weight, once at load."""
    panels = -(-weight.out_features // LANES)
    data = _pad_rows(weight.data, panels * LANES)
    if weight.format in FLOAT_FORMATS:
        values, scales = data.reshape(panels, LANES, weight.in_features).transpose(0, 2, 1), data[:0, :0]
    elif weight.scales is not None:
        values, scales = _int8_words(data, panels), _pad_rows(weight.scales, panels * LANES)
    else:
        blocks = data.reshape(-1, BLOCK_FORMATS[weight.format].block_bytes)
        values, scales = _PACKERS[weight.format](blocks, panels)
    return PackedWeight(weight.format, weight.out_features, weight.in_features, _kept(values), _kept(scales))


def _kept(array: Array) -> Array:
    result = aligned_empty(array.shape, array.dtype)
    result[...] = array
    return result


def _pad_rows(data: Array, rows: int) -> Array:
    missing = rows - data.shape[0]
    return np.concatenate([data, np.zeros((missing, *data.shape[1:]), data.dtype)]) if missing else data


def _words(data: Array, panels: int) -> Array:
    """Rows of bytes (outputs x tiles, 4 n) to words of four: (panels, tiles, n, 16 outputs) uint32."""
    words = np.ascontiguousarray(data).view(np.uint32)
    tiles: Array = words.reshape(panels, LANES, -1, words.shape[1]).transpose(0, 2, 3, 1)
    return tiles


def _lanes(data: Array, panels: int) -> Array:
    """One or more numbers per block, (outputs x blocks, n) to their bytes: (panels, blocks, n, 16 outputs x size)."""
    ordered = data.reshape(panels, LANES, -1, data.shape[1]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(ordered).view(np.uint8)


def _int8_words(data: Array, panels: int) -> Array:
    padded = np.pad(data, ((0, 0), (0, -data.shape[1] % TILE))).view(np.uint8) ^ 0x80
    return _words(padded.reshape(-1, TILE), panels)


def _nibble_words(values: Array, panels: int) -> Array:
    """4-bit numbers (outputs x tiles, 32), the first 16 in the low halves of the bytes."""
    return _words(values[:, :16] | (values[:, 16:] << 4), panels)


def _pack_q8_0(blocks: Bytes, panels: int) -> tuple[Array, Array]:
    return _words(blocks[:, 2:] ^ 0x80, panels), _lanes(_halves(blocks, 0, 1), panels)


def _pack_q4_0(blocks: Bytes, panels: int) -> tuple[Array, Array]:
    return _words(blocks[:, 2:], panels), _lanes(_halves(blocks, 0, 1), panels)


def _pack_q4_1(blocks: Bytes, panels: int) -> tuple[Array, Array]:
    return _words(blocks[:, 4:], panels), _lanes(_halves(blocks, 0, 2), panels)


def _pack_q4_k(blocks: Bytes, panels: int) -> tuple[Array, Array]:
    values = _nibble_words(q4_k_values(blocks).reshape(-1, TILE), panels)
    pairs = np.stack(q4_k_scales(blocks), axis=2).reshape(-1, 16)
    return values, _side_by_side(_lanes(_halves(blocks, 0, 2), panels), _lanes(pairs, panels))


def _pack_q6_k(blocks: Bytes, panels: int) -> tuple[Array, Array]:
    values = q6_k_values(blocks).reshape(-1, 2, 4, 4)
    high = sum(((values[:, :, word] >> 4) << (2 * word) for word in range(1, 4)), values[:, :, 0] >> 4)
    low = _nibble_words(values.reshape(-1, TILE) & 0xF, panels)
    words = np.concatenate([low, _words(high.reshape(-1, 8), panels)], axis=2)
    scales = _lanes(blocks[:, 192:208], panels)
    return words, _side_by_side(_lanes(_halves(blocks, 208, 1), panels), scales)


def _side_by_side(*parts: Array) -> Array:
    """What belongs to one block of 16 outputs, one after the other: (panels, blocks, bytes)."""
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=2)


def _halves(blocks: Bytes, start: int, count: int) -> Array:
    return np.ascontiguousarray(blocks[:, start : start + 2 * count]).view(np.uint16)


_PACKERS: dict[str, Callable[[Bytes, int], tuple[Array, Array]]] = {
    "q8_0": _pack_q8_0,
    "q4_0": _pack_q4_0,
    "q4_1": _pack_q4_1,
    "q4_k": _pack_q4_k,
    "q6_k": _pack_q6_k,
}
