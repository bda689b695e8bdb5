"""Masks enlarged to the original picture and cut at a threshold, as `interpolate(mode="bilinear")` and `>`."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class PackedMasks:
    """N masks of a picture of (H, W).

    bits: (N, W, ceil(H / 8)) uint8: down the columns, as run lengths of COCO go; bit i of byte j is row 8 j + i, and
    those beyond H are 0. areas: (N,) int32. boxes: (N, 4) int32 xyxy, the corners that enclose the pixels that are set,
    all 0 for none.
    """

    bits: torch.Tensor
    areas: torch.Tensor
    boxes: torch.Tensor


def mask_upsample_threshold(
    values: torch.Tensor, size_hw: tuple[int, int], axes: torch.Tensor, threshold: float
) -> PackedMasks:
    """Masks of values (N, h, w) over the network input: a pixel is set where its value is strictly above `threshold`.

    axes: (2, 3) float64, for x and then y: scale and offset of the original picture in the network input, and cells of
    `values` per pixel of that input. A value is bilinear between the centers of cells, first along y, in float32, and
    that of the border beyond them.
    """
    height, width = size_hw
    first, second, fraction = _taps(axes[1], height, values.shape[1])
    lines = _blend(values[:, first].float(), values[:, second].float(), fraction[:, None])
    first, second, fraction = _taps(axes[0], width, values.shape[2])
    above = _blend(lines[:, :, first], lines[:, :, second], fraction) > threshold
    bits = torch.zeros(len(values), width, -(-height // 8) * 8, dtype=torch.uint8)
    bits[:, :, :height] = above.transpose(1, 2)
    bytes_of_bits = bits.view(len(values), width, bits.shape[2] // 8, 8)
    packed = (bytes_of_bits << torch.arange(8, dtype=torch.uint8)).sum(3, dtype=torch.uint8)
    boxes = torch.stack([_enclosing(mask) for mask in above]) if len(above) else torch.zeros(0, 4, dtype=torch.int32)
    return PackedMasks(packed, above.sum((1, 2), dtype=torch.int32), boxes)


def _taps(axis: torch.Tensor, length: int, cells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Between which two cells each pixel lies, and how far from the first: (length,) each."""
    scale, offset, density = axis
    pixel = torch.arange(length, dtype=torch.float64) + 0.5
    place = ((pixel * scale + offset) * density - 0.5).clamp(0, cells - 1)
    first = place.long()
    return first, (first + 1).clamp(max=cells - 1), (place - first).float()


def _blend(first: torch.Tensor, second: torch.Tensor, fraction: torch.Tensor) -> torch.Tensor:
    return (second - first) * fraction + first


def _enclosing(mask: torch.Tensor) -> torch.Tensor:
    """xyxy of what is set in (H, W)."""
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    if not len(rows):
        return torch.zeros(4, dtype=torch.int32)
    corners = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    return torch.stack(corners).int()
