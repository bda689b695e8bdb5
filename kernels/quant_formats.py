"""The block formats of GGUF weight files: sizes, and what their bytes mean.

Source of the layouts: the GGUF/ggml format description (`block_q8_0`, `block_q4_0`, `block_q4_1`, `block_q4_K`,
`block_q6_K`). All of them are little-endian; scales are IEEE half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockFormat:
    """`block_values` weights along a row take `block_bytes` bytes; `decode` turns (n, block_bytes) into float32."""

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]


def _half(blocks: Bytes, start: int) -> Floats:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _signed(data: Bytes) -> Floats:
    return data.view(np.int8).astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """All low nibbles, then all high ones."""
    return np.concatenate([data & 0xF, data >> 4], axis=-1)


def _decode_q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _signed(blocks[:, 2:])


def _decode_q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _decode_q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def q4_k_scales(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """The 6-bit scales and minimums of the 8 sub-blocks: two (n, 8) uint8."""
    first, second, mixed = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (mixed & 0xF) | ((first >> 6) << 4)], axis=1)
    minimums = np.concatenate([second & 63, (mixed >> 4) | ((second >> 6) << 4)], axis=1)
    return scales, minimums


def q4_k_values(blocks: Bytes) -> Bytes:
    """The 4-bit values in order: (n, 8, 32) uint8. 32 bytes hold one sub-block in their low nibbles, the next above."""
    data = blocks[:, 16:].reshape(-1, 4, 32)
    return np.stack([data & 0xF, data >> 4], axis=2).reshape(-1, 8, 32)


def _decode_q4_k(blocks: Bytes) -> Floats:
    scales, minimums = q4_k_scales(blocks)
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minimums.astype(np.float32)
    values = q4_k_values(blocks).astype(np.float32)
    return (scale[:, :, None] * values - minimum[:, :, None]).reshape(-1, 256)


def q6_k_values(blocks: Bytes) -> Bytes:
    """The 6-bit values in order, 0..63: (n, 256) uint8."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 0xF, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = np.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=2)
    values: Bytes = np.bitwise_or(low, high << 4)
    return values.reshape(-1, 256)


def _decode_q6_k(blocks: Bytes) -> Floats:
    scale = _half(blocks, 208) * _signed(blocks[:, 192:208])
    values = q6_k_values(blocks).astype(np.float32) - 32
    return (scale[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


BLOCK_FORMATS = {
    "q8_0": BlockFormat("q8_0", 32, 34, _decode_q8_0),
    "q4_0": BlockFormat("q4_0", 32, 18, _decode_q4_0),
    "q4_1": BlockFormat("q4_1", 32, 20, _decode_q4_1),
    "q4_k": BlockFormat("q4_k", 256, 144, _decode_q4_k),
    "q6_k": BlockFormat("q6_k", 256, 210, _decode_q6_k),
}
