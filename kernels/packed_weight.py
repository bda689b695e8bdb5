"""A weight matrix in the byte order of the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from vtk.kernels.quant_formats import BLOCK_FORMATS, q4_k_scales, q4_k_values, q6_k_values
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

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
    values: torch.Tensor
    scales: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """What a product reads of it."""
        return self.values.nbytes + self.scales.nbytes


def pack(weight: StoredWeight) -> PackedWeight:
    """Reorder a stored weight, once at load."""
    panels = -(-weight.out_features // LANES)
    data = _pad_rows(weight.data, panels * LANES)
    if weight.format in FLOAT_FORMATS:
        values, scales = data.view(panels, LANES, -1).transpose(1, 2), data[:0, :0]
    elif weight.scales is not None:
        values, scales = _int8_words(data, panels), _pad_rows(weight.scales, panels * LANES)
    else:
        blocks = data.view(-1, BLOCK_FORMATS[weight.format].block_bytes)
        values, scales = _PACKERS[weight.format](blocks, panels)
    return PackedWeight(
        weight.format, weight.out_features, weight.in_features, values.contiguous(), scales.contiguous()
    )


def _pad_rows(data: torch.Tensor, rows: int) -> torch.Tensor:
    missing = rows - data.shape[0]
    return torch.cat([data, data.new_zeros(missing, *data.shape[1:])]) if missing else data


def _words(data: torch.Tensor, panels: int, words: int) -> torch.Tensor:
    """Rows of bytes (outputs x tiles, 4 * words) to (panels, tiles, words, 16 outputs, 4 bytes)."""
    return data.reshape(panels, LANES, -1, words, 4).permute(0, 2, 3, 1, 4)


def _lanes(data: torch.Tensor, panels: int) -> torch.Tensor:
    """One or more numbers per block, (outputs x blocks, n) to their bytes: (panels, blocks, n, 16 outputs x size)."""
    ordered = data.reshape(panels, LANES, -1, data.shape[1]).permute(0, 2, 3, 1).contiguous()
    return ordered.view(torch.uint8).flatten(3)


def _int8_words(data: torch.Tensor, panels: int) -> torch.Tensor:
    padded = torch.nn.functional.pad(data, (0, -data.shape[1] % TILE))
    return _words(padded.view(torch.uint8) ^ 0x80, panels, 8)


def _nibble_words(values: torch.Tensor, panels: int) -> torch.Tensor:
    """4-bit numbers (outputs x tiles, 32), the first 16 in the low halves of the bytes."""
    return _words(values[:, :16] | (values[:, 16:] << 4), panels, 4)


def _pack_q8_0(blocks: torch.Tensor, panels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _words(blocks[:, 2:] ^ 0x80, panels, 8), _lanes(_halves(blocks, 0, 1), panels)


def _pack_q4_0(blocks: torch.Tensor, panels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _words(blocks[:, 2:], panels, 4), _lanes(_halves(blocks, 0, 1), panels)


def _pack_q4_1(blocks: torch.Tensor, panels: int) -> tuple[torch.Tensor, torch.Tensor]:
    return _words(blocks[:, 4:], panels, 4), _lanes(_halves(blocks, 0, 2), panels)


def _pack_q4_k(blocks: torch.Tensor, panels: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = _nibble_words(q4_k_values(blocks).reshape(-1, TILE), panels)
    pairs = _lanes(torch.stack(q4_k_scales(blocks), dim=2).flatten(1), panels)
    return values, torch.cat([_lanes(_halves(blocks, 0, 2), panels).flatten(2), pairs.flatten(2)], dim=2)


def _pack_q6_k(blocks: torch.Tensor, panels: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = q6_k_values(blocks).reshape(-1, 2, 4, 4)
    high = sum(((values[:, :, word] >> 4) << (2 * word) for word in range(1, 4)), values[:, :, 0] >> 4)
    low = _nibble_words(values.reshape(-1, TILE) & 0xF, panels)
    words = torch.cat([low, _words(high.reshape(-1, 8), panels, 2)], dim=2)
    scales = _lanes(blocks[:, 192:208], panels)
    return words, torch.cat([_lanes(_halves(blocks, 208, 1), panels).flatten(2), scales.flatten(2)], dim=2)


def _halves(blocks: torch.Tensor, start: int, count: int) -> torch.Tensor:
    return blocks[:, start : start + 2 * count].contiguous().view(torch.int16)


_PACKERS: dict[str, Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]] = {
    "q8_0": _pack_q8_0,
    "q4_0": _pack_q4_0,
    "q4_1": _pack_q4_1,
    "q4_k": _pack_q4_k,
    "q6_k": _pack_q6_k,
}
