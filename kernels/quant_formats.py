"""The block formats of GGUF weight files: sizes, and what their bytes mean.

Source of the layouts: the GGUF/ggml format description (`block_q8_0`, `block_q4_0`, `block_q4_1`, `block_q4_K`,
`block_q6_K`). All of them are little-endian; scales are IEEE half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BlockFormat:
    """`block_values` weights along a row take `block_bytes` bytes; `decode` turns (n, block_bytes) into float32."""

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[torch.Tensor], torch.Tensor]


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(data: torch.Tensor) -> torch.Tensor:
    """All low nibbles, then all high ones."""
    return torch.cat([data & 0xF, data >> 4], dim=-1)


def _decode_q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8).float()


def _decode_q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _decode_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _half(blocks, 2)


def q4_k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The 6-bit scales and minimums of the 8 sub-blocks: two (n, 8) uint8."""
    first, second, mixed = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat([first & 63, (mixed & 0xF) | ((first >> 6) << 4)], dim=1)
    minimums = torch.cat([second & 63, (mixed >> 4) | ((second >> 6) << 4)], dim=1)
    return scales, minimums


def q4_k_values(blocks: torch.Tensor) -> torch.Tensor:
    """The 4-bit values in order: (n, 8, 32) uint8. 32 bytes hold one sub-block in their low nibbles, the next above."""
    data = blocks[:, 16:].reshape(-1, 4, 32)
    return torch.stack([data & 0xF, data >> 4], dim=2).reshape(-1, 8, 32)


def _decode_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scales, minimums = q4_k_scales(blocks)
    scale = _half(blocks, 0) * scales.float()
    minimum = _half(blocks, 2) * minimums.float()
    return (scale[:, :, None] * q4_k_values(blocks).float() - minimum[:, :, None]).reshape(-1, 256)


def q6_k_values(blocks: torch.Tensor) -> torch.Tensor:
    """The 6-bit values in order, 0..63: (n, 256) uint8."""
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = torch.cat([low & 0xF, low >> 4], dim=2).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    return (low | (high << 4)).reshape(-1, 256)


def _decode_q6_k(blocks: torch.Tensor) -> torch.Tensor:
    scale = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    values = q6_k_values(blocks).float() - 32
    return (scale[:, :, None] * values.reshape(-1, 16, 16)).reshape(-1, 256)


BLOCK_FORMATS = {
    "q8_0": BlockFormat("q8_0", 32, 34, _decode_q8_0),
    "q4_0": BlockFormat("q4_0", 32, 18, _decode_q4_0),
    "q4_1": BlockFormat("q4_1", 32, 20, _decode_q4_1),
    "q4_k": BlockFormat("q4_k", 256, 144, _decode_q4_k),
    "q6_k": BlockFormat("q6_k", 256, 210, _decode_q6_k),
}
