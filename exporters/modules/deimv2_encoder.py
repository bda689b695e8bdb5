"""The encoders of DEIMv2: maps are added where D-FINE concatenates them, and its smallest sizes have a lighter one.

Source: DEIMv2 (arXiv 2509.20787) and its repository. Attribute names are those of the official checkpoints, but for
convolutions and norms that are numbered there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vtk.exporters.modules.hybrid_encoder import Gelan, HybridEncoder, HybridEncoderConfig, RepVGG
from vtk.exporters.modules.layers import ConvNorm


class SplitCSP(nn.Module):
    """One 1x1 projection; its second half goes through RepVGG blocks and is added to the first."""

    def __init__(self, in_channels: int, channels: int, bottlenecks: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(in_channels, 2 * channels, 1, act="silu")
        self.bottlenecks = nn.Sequential(*(RepVGG(channels) for _ in range(bottlenecks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, refined = self.conv1(x).chunk(2, dim=1)
        y: torch.Tensor = kept + self.bottlenecks(refined)
        return y


class SumFusion(Gelan):
    """Takes the sum of two maps; `smooth` adds a 3x3 convolution to each branch."""

    def __init__(self, hidden: int, width: int, bottlenecks: int, *, smooth: bool) -> None:
        first, second = (
            nn.Sequential(
                SplitCSP(channels, width, bottlenecks),
                *([ConvNorm(width, width, 3, act="silu")] if smooth else []),
            )
            for channels in (hidden, width)
        )
        super().__init__(hidden, hidden, width, (first, second))


class SumHybridEncoder(HybridEncoder):
    """Fusion without the 3x3 convolutions (official `version: deim`, S to X)."""

    smooth = False

    def _projection(self, channels: int, hidden: int) -> nn.Module:
        return ConvNorm(channels, hidden, 1) if channels != hidden else nn.Identity()

    def _fusion_block(self, config: HybridEncoderConfig) -> nn.Module:
        return SumFusion(config.hidden, config.fusion_width, config.bottlenecks, smooth=self.smooth)

    def _join(self, carried: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        return carried + own


class SmoothSumHybridEncoder(SumHybridEncoder):
    """Fusion with the 3x3 convolutions (official `version: dfine`, N and the larger HGNetV2 models)."""

    smooth = True


@dataclass(frozen=True)
class LiteEncoderConfig:
    """`fusion_width` is the inner width of the fusion blocks, `bottlenecks` their RepVGG count."""

    in_channels: int
    hidden: int
    fusion_width: int
    bottlenecks: int


class PooledConvNorm(ConvNorm):
    """Average pooling to half the size, then a 1x1 convolution. Padding counts as zeros at the border."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 1, act="silu")
        self.pool = nn.AvgPool2d(kernel_size=3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.pool(x))


class GlobalFusion(nn.Module):
    """Adds the mean of the whole map to every cell, then a 1x1 convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv = ConvNorm(channels, channels, 1, act="silu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.cv(x + x.mean(dim=(2, 3), keepdim=True))
        return y


class LiteEncoder(nn.Module):
    """One backbone map of stride 16 to maps of `hidden` channels with strides 16 and 32."""

    def __init__(self, config: LiteEncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.input_proj = nn.ModuleList([ConvNorm(config.in_channels, hidden, 1)])
        self.down_sample1 = PooledConvNorm(hidden)
        self.down_sample2 = PooledConvNorm(hidden)
        self.bi_fusion = GlobalFusion(hidden)
        self.fpn_block = SumFusion(hidden, config.fusion_width, config.bottlenecks, smooth=True)
        self.pan_block = SumFusion(hidden, config.fusion_width, config.bottlenecks, smooth=True)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
        (only,) = maps
        fine = self.input_proj[0](only)
        coarse = self.bi_fusion(self.down_sample1(fine))
        fine = self.fpn_block(fine + self.upsample(coarse))
        return [fine, self.pan_block(coarse + self.down_sample2(fine))]
