"""Multi-scale deformable attention (Zhu et al. 2021, arXiv:2010.04159) with its own number of points per level."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import grid_sample


def ms_deform_attn(
    value: torch.Tensor,
    level_hw: Sequence[tuple[int, int]],
    points: Sequence[int],
    locations: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """Weighted sum of bilinear samples; outside of a map there are zeros.

    value: (B, S, H, D), the maps one after the other, each row by row; S is the sum of h * w over `level_hw`. points:
    per level. locations: (B, H, Q, P, 2) xy in 0..1 of the map, P = sum(points), points of one level together. weights:
    (B, H, Q, P). Returns (B, Q, H * D).
    """
    batch, _, heads, dim = value.shape
    maps = torch.split(value, [height * width for height, width in level_hw], dim=1)
    grids = torch.split((2 * locations - 1).flatten(0, 1), list(points), dim=2)
    samples = [
        grid_sample(part.permute(0, 2, 3, 1).reshape(batch * heads, dim, *hw), grid, align_corners=False)
        for part, hw, grid in zip(maps, level_hw, grids, strict=True)
    ]
    mixed = (torch.cat(samples, dim=-1) * weights.flatten(0, 1)[:, None]).sum(-1)
    return mixed.view(batch, heads * dim, -1).transpose(1, 2)
