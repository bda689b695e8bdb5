"""PResNet, the ResNet-vd of RT-DETR: three small convolutions first, and shortcuts that average before they project.

Sources: Bag of Tricks (arXiv 1812.01187), the RT-DETR repository. Attribute names are those of official checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from vtk.exporters.modules.layers import ConvNorm, activation

STRIDES = (4, 8, 16, 32)


@dataclass(frozen=True)
class PResNetConfig:
    """stem: channels after the first and the last of its three convolutions. Per stage: blocks, and inner channels.

    bottleneck: blocks of 1x1, 3x3 and 1x1 with four times as many channels outside, instead of two 3x3.
    """

    stem: tuple[int, int]
    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    bottleneck: bool

    @property
    def out_channels(self) -> tuple[int, ...]:
        return tuple(width * (4 if self.bottleneck else 1) for width in self.channels)


class ResidualBlock(nn.Module):
    """A basic block or a bottleneck; the first of a stage has a projection in its shortcut."""

    def __init__(self, in_channels: int, channels: int, *, stride: int, bottleneck: bool, first: bool) -> None:
        super().__init__()
        out_channels = channels * (4 if bottleneck else 1)
        if bottleneck:
            self.branch2a = ConvNorm(in_channels, channels, 1, act="relu")
            self.branch2b = ConvNorm(channels, channels, 3, stride=stride, act="relu")
            self.branch2c = ConvNorm(channels, out_channels, 1)
        else:
            self.branch2a = ConvNorm(in_channels, channels, 3, stride=stride, act="relu")
            self.branch2b = ConvNorm(channels, channels, 3)
        self.short = self._shortcut(in_channels, out_channels, stride) if first else nn.Identity()
        self.act = activation("relu")

    @staticmethod
    def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
        projection = ConvNorm(in_channels, out_channels, 1)
        if stride == 1:
            return projection
        return nn.Sequential(OrderedDict(pool=nn.AvgPool2d(2, 2, ceil_mode=True), conv=projection))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.branch2b(self.branch2a(x))
        if hasattr(self, "branch2c"):
            out = self.branch2c(out)
        y: torch.Tensor = self.act(out + self.short(x))
        return y


class Stage(nn.Module):
    """Blocks of one resolution; the first halves it, except in the first stage."""

    def __init__(self, in_channels: int, channels: int, blocks: int, *, stride: int, bottleneck: bool) -> None:
        super().__init__()
        widths = [in_channels] + [channels * (4 if bottleneck else 1)] * (blocks - 1)
        self.blocks = nn.ModuleList(
            ResidualBlock(width, channels, stride=stride if index == 0 else 1, bottleneck=bottleneck, first=index == 0)
            for index, width in enumerate(widths)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class PResNet(nn.Module):
    """images (B, 3, H, W) -> the maps of the last `levels` stages, finest first."""

    def __init__(self, config: PResNetConfig, *, levels: int) -> None:
        super().__init__()
        small, large = config.stem
        self.levels = levels
        self.conv1 = nn.Sequential(
            OrderedDict(
                conv1_1=ConvNorm(3, small, 3, stride=2, act="relu"),
                conv1_2=ConvNorm(small, small, 3, act="relu"),
                conv1_3=ConvNorm(small, large, 3, act="relu"),
            )
        )
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        ins = (large, *config.out_channels[:-1])
        numbers = zip(ins, config.channels, config.blocks, strict=True)
        self.res_layers = nn.ModuleList(
            Stage(*each, stride=1 if index == 0 else 2, bottleneck=config.bottleneck)
            for index, each in enumerate(numbers)
        )

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.pool(self.conv1(images))
        maps = []
        for stage in self.res_layers:
            x = stage(x)
            maps.append(x)
        return maps[-self.levels :]
