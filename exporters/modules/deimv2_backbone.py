"""The DINOv3 backbone of DEIMv2 S to X: a vision transformer and a spatial tuning adapter beside it.

Source: DEIMv2 (arXiv 2509.20787) and its repository. The transformer sees one scale; three of its layers, resized,
carry meaning, and a few convolutions over the picture carry detail.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import interpolate

from vtk.exporters.modules.dino_vit import DinoViT, ViTConfig, rope_tables
from vtk.exporters.modules.layers import ConvNorm


@dataclass(frozen=True)
class STAConfig:
    """`after` are the blocks (from 0) whose outputs become the maps of strides 8, 16 and 32.

    `planes` is the width of the adapter's stem, `hidden` that of the maps.
    """

    vit: ViTConfig
    planes: int
    hidden: int
    after: tuple[int, int, int]


class SpatialPrior(nn.Module):
    """Images to detail maps of strides 8, 16 and 32 with 2, 4 and 4 times `planes` channels."""

    def __init__(self, planes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, planes, 3, stride=2)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.conv2 = ConvNorm(planes, 2 * planes, 3, stride=2)
        self.conv3 = ConvNorm(2 * planes, 4 * planes, 3, stride=2)
        self.conv4 = ConvNorm(4 * planes, 4 * planes, 3, stride=2)
        self.act = nn.GELU()

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        fine = self.conv2(self.pool(self.act(self.stem(images))))
        middle = self.conv3(self.act(fine))
        return [fine, middle, self.conv4(self.act(middle))]


class DinoFeatures(nn.Module):
    """Images (N, 3, H, W) of one size to the patch tokens after some blocks, as maps (N, dim, h, w).

    Each has passed the final norm, where the transformer has one.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    prefix: torch.Tensor

    def __init__(self, vit: DinoViT, grid_hw: tuple[int, int], after: tuple[int, ...]) -> None:
        super().__init__()
        self.vit, self.grid_hw, self.after = vit, grid_hw, after
        self.num_prefix = 1 + vit.config.registers
        cos, sin = rope_tables(vit.rope_embed.periods, grid_hw, num_prefix=self.num_prefix)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.register_buffer("prefix", vit.prefix_tokens().detach().clone())

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        tokens = torch.cat([self.prefix.expand(images.shape[0], -1, -1), self.vit.embed_patches(images)], dim=1)
        maps = []
        for index, block in enumerate(self.vit.blocks[: self.after[-1] + 1]):
            tokens = block(tokens, (self.cos, self.sin))
            if index in self.after:
                patches = self.vit.norm(tokens)[:, self.num_prefix :]
                maps.append(patches.transpose(1, 2).unflatten(2, self.grid_hw))
        return maps


class DinoSTA(nn.Module):
    """Images (N, 3, *input_hw) to maps of `hidden` channels with strides 8, 16 and 32."""

    def __init__(self, config: STAConfig, *, input_hw: tuple[int, int]) -> None:
        super().__init__()
        self.config = config
        self.grid_hw = (input_hw[0] // config.vit.patch, input_hw[1] // config.vit.patch)
        self.dinov3: nn.Module = DinoViT(config.vit)
        self.sta = SpatialPrior(config.planes)
        self.fuse = nn.ModuleList(
            ConvNorm(config.vit.dim + times * config.planes, config.hidden, 1) for times in (2, 4, 4)
        )

    def bake(self) -> None:
        """Compute the tables of positions from the weights. Call once, when these are loaded and before any picture."""
        assert isinstance(self.dinov3, DinoViT)
        self.dinov3 = DinoFeatures(self.dinov3, self.grid_hw, self.config.after)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        fine, middle, coarse = self.dinov3(images)
        height, width = self.grid_hw
        meanings = (_resize(fine, (2 * height, 2 * width)), middle, _resize(coarse, (height // 2, width // 2)))
        pairs = zip(meanings, self.sta(images), strict=True)
        return [fuse(torch.cat(pair, dim=1)) for fuse, pair in zip(self.fuse, pairs, strict=True)]


def _resize(x: torch.Tensor, size_hw: tuple[int, int]) -> torch.Tensor:
    return interpolate(x, size=size_hw, mode="bilinear", align_corners=False)
