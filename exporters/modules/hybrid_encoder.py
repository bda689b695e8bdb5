"""The hybrid encoder of RT-DETR as D-FINE and DEIM use it: attention on the coarsest map, then FPN and PAN.

Sources: RT-DETR (arXiv 2304.08069), RepVGG (2101.03697), GELAN of YOLOv9 (2402.13616), the D-FINE repository.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from vtk.exporters.modules.grids import sincos_position
from vtk.exporters.modules.layers import ConvNorm, SelfAttention, activation


@dataclass(frozen=True)
class HybridEncoderConfig:
    """`fusion_width` is the inner width of the fusion blocks, `bottlenecks` their RepVGG count."""

    in_channels: tuple[int, ...]
    hidden: int
    ffn: int
    heads: int
    layers: int
    fusion_width: int
    bottlenecks: int


class RepVGG(nn.Module):
    """Sum of a 3x3 and a 1x1 convolution, then the activation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(channels, channels, 3)
        self.conv2 = ConvNorm(channels, channels, 1)
        self.act = activation("silu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.conv1(x) + self.conv2(x))
        return y


class CSPRep(nn.Module):
    """Two 1x1 projections, one through RepVGG blocks, summed."""

    def __init__(self, in_channels: int, channels: int, bottlenecks: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(in_channels, channels, 1, act="silu")
        self.conv2 = ConvNorm(in_channels, channels, 1, act="silu")
        self.bottlenecks = nn.Sequential(*(RepVGG(channels) for _ in range(bottlenecks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.bottlenecks(self.conv1(x)) + self.conv2(x)
        return y


class Gelan(nn.Module):
    """Halves of a projection and two chained branches of `width` channels, concatenated and projected."""

    def __init__(self, in_channels: int, hidden: int, width: int, branches: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.cv1 = ConvNorm(in_channels, 2 * hidden, 1, act="silu")
        self.cv2, self.cv3 = branches
        self.cv4 = ConvNorm(2 * hidden + 2 * width, hidden, 1, act="silu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cv1(x)
        branch2 = self.cv2(x.chunk(2, dim=1)[1])
        branch3 = self.cv3(branch2)
        y: torch.Tensor = self.cv4(torch.cat([x, branch2, branch3], dim=1))
        return y


class FusionBlock(Gelan):
    """Two concatenated maps through branches of a CSP block and a 3x3 convolution each."""

    def __init__(self, hidden: int, width: int, bottlenecks: int) -> None:
        first, second = (
            nn.Sequential(CSPRep(channels, width, bottlenecks), ConvNorm(width, width, 3, act="silu"))
            for channels in (hidden, width)
        )
        super().__init__(2 * hidden, hidden, width, (first, second))


class SCDown(nn.Module):
    """1x1, then a depthwise stride-2 convolution, both without activation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = ConvNorm(channels, channels, 1)
        self.cv2 = ConvNorm(channels, channels, 3, stride=2, groups=channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.cv2(self.cv1(x))
        return y


class EncoderLayer(nn.Module):
    """Post-norm transformer layer with GELU."""

    def __init__(self, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.self_attn = SelfAttention(dim, heads)
        self.linear1 = nn.Linear(dim, ffn)
        self.linear2 = nn.Linear(ffn, dim)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.act = activation("gelu")

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.self_attn(x, position))
        y: torch.Tensor = self.norm2(x + self.linear2(self.act(self.linear1(x))))
        return y


class IntraScale(nn.Module):
    """Transformer over the tokens of one map of a fixed size."""

    position: torch.Tensor

    def __init__(self, config: HybridEncoderConfig, map_hw: tuple[int, int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config.hidden, config.heads, config.ffn) for _ in range(config.layers))
        self.register_buffer("position", sincos_position(map_hw, config.hidden), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        for layer in self.layers:
            tokens = layer(tokens, self.position)
        return tokens.transpose(1, 2).reshape(x.shape)


class HybridEncoder(nn.Module):
    """Backbone maps, finest first, to maps of `hidden` channels of the same sizes.

    coarsest_hw: height and width of the last map; its position embedding is baked.
    """

    def __init__(self, config: HybridEncoderConfig, *, coarsest_hw: tuple[int, int]) -> None:
        super().__init__()
        hidden, steps = config.hidden, len(config.in_channels) - 1
        self.input_proj = nn.ModuleList(self._projection(channels, hidden) for channels in config.in_channels)
        self.encoder = nn.ModuleList([IntraScale(config, coarsest_hw)])
        self.lateral_convs = nn.ModuleList(ConvNorm(hidden, hidden, 1) for _ in range(steps))
        self.fpn_blocks = nn.ModuleList(self._fusion_block(config) for _ in range(steps))
        self.downsample_convs = nn.ModuleList(nn.Sequential(SCDown(hidden)) for _ in range(steps))
        self.pan_blocks = nn.ModuleList(self._fusion_block(config) for _ in range(steps))
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")

    def _projection(self, channels: int, hidden: int) -> nn.Module:
        return ConvNorm(channels, hidden, 1)

    def _fusion_block(self, config: HybridEncoderConfig) -> nn.Module:
        return FusionBlock(config.hidden, config.fusion_width, config.bottlenecks)

    def _join(self, carried: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """What a fusion block takes: the map from the level before, and that of its own level."""
        return torch.cat([carried, own], dim=1)

    def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
        levels = [proj(x) for proj, x in zip(self.input_proj, maps, strict=True)]
        levels[-1] = self.encoder[0](levels[-1])
        return self._bottom_up(self._top_down(levels))

    def _top_down(self, levels: list[torch.Tensor]) -> list[torch.Tensor]:
        """Finest first again; every map but the finest is the lateral one that was sent down."""
        *finer, current = levels
        outs: list[torch.Tensor] = []
        for lateral, fuse, fine in zip(self.lateral_convs, self.fpn_blocks, reversed(finer), strict=True):
            coarse = lateral(current)
            outs.insert(0, coarse)
            current = fuse(self._join(self.upsample(coarse), fine))
        return [current, *outs]

    def _bottom_up(self, levels: list[torch.Tensor]) -> list[torch.Tensor]:
        outs = [levels[0]]
        for down, fuse, coarse in zip(self.downsample_convs, self.pan_blocks, levels[1:], strict=True):
            outs.append(fuse(self._join(down(outs[-1]), coarse)))
        return outs
