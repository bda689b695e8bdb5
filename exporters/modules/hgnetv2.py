"""HGNetV2, the convolutional backbone of D-FINE, DEIM and the small DEIMv2 models.

Source: PaddlePaddle's PP-HGNetV2 as used by the D-FINE repository; parameter names are those of its checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vtk.exporters.modules.layers import activation


@dataclass(frozen=True)
class StageConfig:
    """One stage: `blocks` aggregation blocks of `layers` convolutions of `mid_channels` each.

    `light` convolutions are a 1x1 followed by a depthwise one; `downsample` halves the size first.
    """

    in_channels: int
    mid_channels: int
    out_channels: int
    blocks: int
    layers: int
    kernel: int
    light: bool
    downsample: bool


@dataclass(frozen=True)
class HGNetV2Config:
    """`stem` is the channels after its first and last convolution; `lab` adds learnable affine blocks."""

    stem: tuple[int, int]
    stages: tuple[StageConfig, ...]
    lab: bool


class LearnableAffine(nn.Module):
    """One scale and one bias for the whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + self.bias


class ConvBNAct(nn.Module):
    """Convolution without bias, batch norm, optional ReLU and learnable affine."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        lab: bool,
        stride: int = 1,
        groups: int = 1,
        act: str = "relu",
    ) -> None:
        super().__init__()
        padding = (kernel - 1) // 2
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)
        self.act = activation(act)
        self.lab = LearnableAffine() if lab and act != "identity" else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lab(self.act(self.bn(self.conv(x))))
        return y


class LightConv(nn.Module):
    """1x1 convolution without activation, then a depthwise one."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, lab: bool) -> None:
        super().__init__()
        self.conv1 = ConvBNAct(in_channels, out_channels, 1, lab=lab, act="identity")
        self.conv2 = ConvBNAct(out_channels, out_channels, kernel, lab=lab, groups=out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv2(self.conv1(x))
        return y


class Stem(nn.Module):
    """Stride 4. The two 2x2 kernels see one row and column of zeros at the bottom right."""

    def __init__(self, channels: tuple[int, int], *, lab: bool) -> None:
        super().__init__()
        mid, out = channels
        self.stem1 = ConvBNAct(3, mid, 3, lab=lab, stride=2)
        self.stem2a = ConvBNAct(mid, mid // 2, 2, lab=lab)
        self.stem2b = ConvBNAct(mid // 2, mid, 2, lab=lab)
        self.stem3 = ConvBNAct(2 * mid, mid, 3, lab=lab, stride=2)
        self.stem4 = ConvBNAct(mid, out, 1, lab=lab)
        self.pool = nn.MaxPool2d(2, stride=1)
        self.pad = nn.ZeroPad2d((0, 1, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pad(self.stem1(x))
        branch = self.stem2b(self.pad(self.stem2a(x)))
        y: torch.Tensor = self.stem4(self.stem3(torch.cat([self.pool(x), branch], dim=1)))
        return y


class HGBlock(nn.Module):
    """A chain of convolutions whose input and every result are concatenated and squeezed."""

    def __init__(self, config: StageConfig, in_channels: int, *, residual: bool, lab: bool) -> None:
        super().__init__()
        mid, out = config.mid_channels, config.out_channels
        conv = LightConv if config.light else ConvBNAct
        widths = [in_channels] + [mid] * (config.layers - 1)
        self.layers = nn.ModuleList(conv(width, mid, config.kernel, lab=lab) for width in widths)
        self.aggregation = nn.Sequential(
            ConvBNAct(in_channels + config.layers * mid, out // 2, 1, lab=lab),
            ConvBNAct(out // 2, out, 1, lab=lab),
        )
        self.residual = residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(layer(maps[-1]))
        y: torch.Tensor = self.aggregation(torch.cat(maps, dim=1))
        return y + x if self.residual else y


class HGStage(nn.Module):
    """Optional depthwise stride-2 convolution, then the blocks; all but the first are residual."""

    def __init__(self, config: StageConfig, *, lab: bool) -> None:
        super().__init__()
        width = config.in_channels
        self.downsample = (
            ConvBNAct(width, width, 3, lab=lab, stride=2, groups=width, act="identity")
            if config.downsample
            else nn.Identity()
        )
        self.blocks = nn.Sequential(
            *(
                HGBlock(config, config.out_channels if i else width, residual=i > 0, lab=lab)
                for i in range(config.blocks)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.blocks(self.downsample(x))
        return y


class HGNetV2(nn.Module):
    """Images (B, 3, H, W) to the maps of the last `levels` stages, finest first."""

    def __init__(self, config: HGNetV2Config, *, levels: int) -> None:
        super().__init__()
        self.levels = levels
        self.stem = Stem(config.stem, lab=config.lab)
        self.stages = nn.ModuleList(HGStage(stage, lab=config.lab) for stage in config.stages)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(images)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[-self.levels :]
