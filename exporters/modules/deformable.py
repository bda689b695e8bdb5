"""Deformable attention with its own number of points per level (RT-DETRv2, arXiv 2407.17140; D-FINE repository)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import grid_sample

# Offsets are in units of half the reference box.
OFFSET_SCALE = 0.5


def deform_attn(
    values: Sequence[torch.Tensor], locations: torch.Tensor, weights: torch.Tensor, points: Sequence[int]
) -> torch.Tensor:
    """Weighted sum of bilinear samples; outside the map there are zeros.

    values: per level (B, H * D, h, w), heads outermost in the channels. locations: (B, H, Q, P, 2) xy in 0..1 of the
    map, P = sum(points), points of one level together. weights: (B, H, Q, P). Returns (B, Q, H * D).
    """
    batch, heads, queries, total, _ = locations.shape
    grids = torch.split((2 * locations - 1).flatten(0, 1), list(points), dim=2)
    samples = [
        grid_sample(value.reshape(batch * heads, -1, *value.shape[2:]), grid, mode="bilinear", align_corners=False)
        for value, grid in zip(values, grids, strict=True)
    ]
    mixed = torch.cat(samples, dim=-1) * weights.reshape(batch * heads, 1, queries, total)
    return mixed.sum(dim=-1).view(batch, -1, queries).transpose(1, 2)


class MSDeformableAttention(nn.Module):
    """Each query samples the value maps at offsets from its reference box. There is no value or output projection."""

    num_points_scale: torch.Tensor

    def __init__(self, dim: int, heads: int, points: tuple[int, ...]) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        self.sampling_offsets = nn.Linear(dim, heads * sum(points) * 2)
        self.attention_weights = nn.Linear(dim, heads * sum(points))
        self.register_buffer("num_points_scale", torch.tensor([1 / n for n in points for _ in range(n)]))

    def forward(self, query: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """query (B, Q, dim), boxes (B, Q, 4) cxcywh in 0..1, values per level (B, dim, h, w) -> (B, Q, dim)."""
        batch, queries, _ = query.shape
        per_head = (batch, queries, self.heads, -1)
        offsets = self.sampling_offsets(query).view(*per_head, 2).transpose(1, 2)
        weights = self.attention_weights(query).view(per_head).transpose(1, 2).softmax(dim=-1)
        center, size = boxes[:, None, :, None, :2], boxes[:, None, :, None, 2:]
        scale = OFFSET_SCALE * self.num_points_scale[:, None]
        locations = center + offsets * scale * size
        return deform_attn(values, locations, weights, self.points)
