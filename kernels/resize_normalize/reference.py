"""Resize and normalization picture by picture: two passes of fixed-point arithmetic, as Pillow's Resample.c."""

from __future__ import annotations

import torch

from vtk.kernels.resize_normalize.plan import ResizePlan
from vtk.kernels.resize_normalize.tables import PRECISION_BITS, TABLE_HEAD

Triple = tuple[float, float, float]


def resize_normalize(
    pixels: torch.Tensor, plan: ResizePlan, out: torch.Tensor, mean: Triple, std: Triple, pad_value: int = 114
) -> torch.Tensor:
    """Pictures of any sizes, resized along one axis, then the other, rounded to uint8; then `(x / 255 - mean) / std`.

    pixels: (L,) uint8, the RGB pictures (h, w, 3) one after the other, where the plan's placements say. out: (B, 3, H,
    W) floating, is filled and returned; pixels in no picture are `pad_value`, 0..255, before the normalization.
    """
    height, width = plan.size_hw
    shift, scale = (torch.tensor(triple, dtype=torch.float32)[:, None, None] for triple in (mean, std))
    for header, picture in zip(plan.headers.tolist(), out, strict=True):
        start, row_bytes, y_first, x_base, x_columns, y_base, y_columns = header
        across = plan.tables[x_base:][: width * x_columns].view(width, x_columns)
        down = plan.tables[y_base:][: height * y_columns].view(height, y_columns)
        source_height = max(1, int((down[:, 0] + down[:, 1]).max()))
        source = pixels[start:][: source_height * row_bytes].view(source_height, -1, 3)
        if y_first:
            resized = _resample_x(_resample(source, down), across)
        else:
            resized = _resample(_resample_x(source, across), down)
        inside = (down[:, 1] > 0)[:, None, None] & (across[:, 1] > 0)[:, None]
        resized = torch.where(inside, resized, pad_value)
        picture.copy_((resized.permute(2, 0, 1).float() / 255 - shift) / scale)
    return out


def _resample_x(pixels: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return _resample(pixels.transpose(0, 1), table).transpose(0, 1)


def _resample(lines: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """(source, ...) to (length, ...), both 0..255."""
    first, weights = table[:, 0].long(), table[:, TABLE_HEAD:].long()
    total = torch.full((len(table), *lines.shape[1:]), 1 << (PRECISION_BITS - 1), dtype=torch.int64)
    for tap in range(weights.shape[1]):
        line = (first + tap).clamp(max=len(lines) - 1)  # beyond the last one weights are 0
        total += lines[line] * weights[:, tap, None, None]
    return (total >> PRECISION_BITS).clamp(0, 255)
