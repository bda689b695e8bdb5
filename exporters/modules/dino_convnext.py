"""The ConvNeXt of DINOv3, under the parameter names of the official code.

An own module for the same reasons as `dino_vit`: one class for three layouts, and a graph of plain convolutions,
LayerNormalization and matrix products. Source: Liu et al. 2022 and facebookresearch/dinov3 models/convnext.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ConvNextConfig:
    """Blocks and width of each of the four stages."""

    depths: tuple[int, ...]
    dims: tuple[int, ...]
    norm_eps: float = 1e-6


class DinoConvNext(nn.Module):
    """Stage i runs `downsample_layers[i]`, then `stages[i]`; the final stage has 1/32 of the input resolution."""

    def __init__(self, config: ConvNextConfig) -> None:
        super().__init__()
        dims, eps = config.dims, config.norm_eps
        stem = nn.Sequential(nn.Conv2d(3, dims[0], 4, 4), _ChannelNorm(dims[0], eps))
        later = [
            nn.Sequential(_ChannelNorm(before, eps), nn.Conv2d(before, after, 2, 2)) for before, after in pairwise(dims)
        ]
        self.downsample_layers = nn.ModuleList([stem, *later])
        self.stages = nn.ModuleList(
            nn.Sequential(*(_Block(dim, eps) for _ in range(depth)))
            for depth, dim in zip(config.depths, dims, strict=True)
        )
        self.norm = nn.LayerNorm(dims[-1], eps=eps)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (N, 3, H, W), sides multiples of 32, to cls (N, D) and patches (N, H/32 * W/32, D)."""
        x = images
        for downsample, stage in zip(self.downsample_layers, self.stages, strict=True):
            x = stage(downsample(x))
        return self.norm(x.mean(dim=(-2, -1))), self.norm(x.flatten(2).transpose(1, 2))


class _ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Block(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=eps)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        update = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        update = self.gamma * self.pwconv2(self.act(self.pwconv1(update)))
        out: Tensor = x + update.permute(0, 3, 1, 2)
        return out
