"""What RF-DETR sees with: a DINOv2 whose attention is mostly within windows, and the projector of its maps.

Sources: RF-DETR (arXiv 2511.09554) and its repository; LW-DETR (2406.03459) for the projector. Attribute names of the
projector are those of the official checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from vtk.exporters.modules.dino_vit import DinoViT, interpolate_positions
from vtk.exporters.modules.layers import activation

# Of the norms that are not in a ConvChannelNorm; those may have another (see `ProjectorConfig`).
MAP_NORM_EPS = 1e-6


@dataclass(frozen=True)
class ProjectorConfig:
    """in_channels: of one backbone map; `maps` of them are joined. scales: of each level, finest first (2, 1 or 0.5).

    eps: of the norms after convolutions: 1e-6 in the official code, 1e-5 by default in transformers.
    """

    in_channels: int
    maps: int
    width: int
    out_channels: int
    blocks: int
    scales: tuple[float, ...]
    eps: float


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of (B, C, H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvChannelNorm(nn.Module):
    """Convolution without bias, norm over channels, activation; padded to keep the size at stride 1."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, *, eps: float, stride: int = 1, act: str = "silu"
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)
        self.bn = ChannelNorm(out_channels, eps=eps)
        self.act = activation(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.bn(self.conv(x)))
        return y


class Bottleneck(nn.Module):
    """Two 3x3 convolutions, without a shortcut."""

    def __init__(self, channels: int, *, eps: float) -> None:
        super().__init__()
        self.cv1 = ConvChannelNorm(channels, channels, 3, eps=eps)
        self.cv2 = ConvChannelNorm(channels, channels, 3, eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.cv2(self.cv1(x))
        return y


class C2f(nn.Module):
    """Splits its input in two halves of `width` channels; the second passes the blocks, and every result is kept."""

    def __init__(self, config: ProjectorConfig, in_channels: int) -> None:
        super().__init__()
        width, eps = config.width, config.eps
        self.cv1 = ConvChannelNorm(in_channels, 2 * width, 1, eps=eps)
        self.m = nn.ModuleList(Bottleneck(width, eps=eps) for _ in range(config.blocks))
        self.cv2 = ConvChannelNorm((2 + config.blocks) * width, config.out_channels, 1, eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.cv1(x).chunk(2, dim=1))
        for block in self.m:
            parts.append(block(parts[-1]))
        y: torch.Tensor = self.cv2(torch.cat(parts, dim=1))
        return y


class Projector(nn.Module):
    """Backbone maps, all (B, C, h, w), to one map (B, out_channels, h * scale, w * scale) per level."""

    def __init__(self, config: ProjectorConfig) -> None:
        super().__init__()
        self.stages_sampling = nn.ModuleList(
            nn.ModuleList(_resampler(config, scale) for _ in range(config.maps)) for scale in config.scales
        )
        self.stages = nn.ModuleList(
            nn.Sequential(C2f(config, _joined(config, scale)), ChannelNorm(config.out_channels, eps=MAP_NORM_EPS))
            for scale in config.scales
        )

    def forward(self, maps: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        levels = []
        for resamplers, stage in zip(self.stages_sampling, self.stages, strict=True):
            assert isinstance(resamplers, nn.ModuleList)
            resampled = [resample(x) for resample, x in zip(resamplers, maps, strict=True)]
            levels.append(stage(torch.cat(resampled, dim=1)))
        return levels


def _joined(config: ProjectorConfig, scale: float) -> int:
    """Channels of all maps together, after the resampling that halves those of a finer level."""
    return config.maps * (config.in_channels // 2 if scale == 2 else config.in_channels)


def _resampler(config: ProjectorConfig, scale: float) -> nn.Module:
    """Under the official names: a list of one module, or of none."""
    channels = config.in_channels
    if scale == 2:
        return nn.Sequential(nn.ConvTranspose2d(channels, channels // 2, 2, 2))
    if scale == 0.5:
        return nn.Sequential(ConvChannelNorm(channels, channels, 3, eps=config.eps, stride=2, act="relu"))
    return nn.Sequential()


class WindowedViT(nn.Module):
    """A DINOv2 for one square input: images (B, 3, S, S) -> maps (B, dim, g, g), g = S / patch, of chosen blocks.

    Every window has its own class token. `after` are numbers of blocks that give a map, counted from 1; the blocks at
    the same numbers counted from 0 attend across windows (so the official code numbers both, and so it was trained).
    All but attention works token by token, so that a block across windows is the same block on joined tokens.
    """

    prefix: torch.Tensor
    positions: torch.Tensor

    def __init__(self, vit: DinoViT, *, grid: int, windows: int, after: tuple[int, ...]) -> None:
        super().__init__()
        self.vit, self.grid, self.windows, self.after = vit, grid, windows, after
        with torch.no_grad():
            self.register_buffer("prefix", vit.prefix_tokens().clone())
            self.register_buffer("positions", interpolate_positions(vit.pos_embed, (grid, grid), vit.config))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        batch, dim = images.shape[0], self.vit.config.dim
        patches = self._cut(self.vit.embed_patches(images) + self.positions)
        tokens = torch.cat([self.prefix.expand(patches.shape[0], -1, -1), patches], dim=1)
        windowed, maps = tokens.shape, []
        for index, block in enumerate(self.vit.blocks[: self.after[-1]]):
            if index in self.after:
                tokens = block(tokens.reshape(batch, -1, dim), None).reshape(windowed)
            else:
                tokens = block(tokens, None)
            if index + 1 in self.after:
                maps.append(self._join(self.vit.norm(tokens)[:, 1:]))
        return maps

    def _cut(self, patches: torch.Tensor) -> torch.Tensor:
        """(B, grid * grid, dim) to (B * windows * windows, patches of a window, dim)."""
        count, side = self.windows, self.grid // self.windows
        rows = patches.reshape(-1, side, count, side, patches.shape[-1])
        return rows.transpose(1, 2).reshape(-1, side * side, patches.shape[-1])

    def _join(self, patches: torch.Tensor) -> torch.Tensor:
        """(B * windows * windows, patches of a window, dim) to (B, dim, grid, grid)."""
        count, side = self.windows, self.grid // self.windows
        rows = patches.reshape(-1, count, side, side, patches.shape[-1])
        return rows.transpose(1, 2).reshape(-1, self.grid, self.grid, patches.shape[-1]).permute(0, 3, 1, 2)
