"""SAM3's picture encoder: a plain transformer, mostly in windows, and the feature pyramid on its last map.

Sources: facebookresearch/sam3 (vitdet.py, necks.py), Li et al. 2022 (ViTDet), Su et al. 2021 (RoPE). The official
rotation multiplies complex numbers, which no engine has; here it is sine and cosine, baked for the input size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vtk.exporters.modules.sam3_config import Sam3Config, Sam3VisionConfig
from vtk.exporters.modules.sam3_layers import Attention, FeedForward, norm

if TYPE_CHECKING:
    from vtk.exporters.modules.sam3_points import Sam3Points

Rope = tuple[Tensor, Tensor]


class Sam3Vision(nn.Module):
    """Weights and blocks; everything that depends on the input size is in `Sam3ImageEncoder`."""

    def __init__(self, config: Sam3VisionConfig, out_dim: int) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = nn.Conv2d(3, config.dim, config.patch, config.patch, bias=False)
        self.position = nn.Parameter(torch.zeros(1, config.side**2, config.dim))
        self.norm_pre = norm(config.dim)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.depth))
        self.neck = pyramid(config.dim, out_dim)


class Sam3ImageEncoder(nn.Module):
    """Export wrapper for one input size: images (N, 3, S, S) -> fpn_0, fpn_1, fpn_2 (N, D, 4g | 2g | g, ...).

    With `points`, what `Sam3Points.features` makes of the same last map follows.
    """

    positions: Tensor
    window_cos: Tensor
    window_sin: Tensor
    global_cos: Tensor
    global_sin: Tensor

    def __init__(self, vision: Sam3Vision, config: Sam3Config, points: Sam3Points | None = None) -> None:
        super().__init__()
        self.vision, self.grid, self.points = vision, config.grid, points
        head_dim = config.vision.dim // config.vision.heads
        window, theta = config.vision.window, config.vision.rope_theta
        self.register_buffer("positions", tile_positions(vision.position, config.vision.side, config.grid))
        for name, side in (("window", window), ("global", config.grid)):
            cos, sin = axial_rope(side, head_dim, theta=theta, scale=window / side)
            self.register_buffer(f"{name}_cos", cos)
            self.register_buffer(f"{name}_sin", sin)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        config = self.vision.config
        x = self.vision.patch_embed(images).permute(0, 2, 3, 1) + self.positions
        x = self.vision.norm_pre(x)
        for index, block in enumerate(self.vision.blocks):
            if index in config.global_blocks:
                x = block(x, self.grid, (self.global_cos, self.global_sin))
            else:
                x = block(x, config.window, (self.window_cos, self.window_sin))
        features = x.permute(0, 3, 1, 2)
        maps = tuple(level(features) for level in self.vision.neck)
        return maps if self.points is None else (*maps, *self.points.features(features))


def tile_positions(table: Tensor, side: int, grid: int) -> Tensor:
    """The learned table (1, side * side, C), repeated (not interpolated) over the map: (1, grid, grid, C)."""
    square = table.detach().float().view(1, side, side, -1)
    repeats = -(-grid // side)
    return square.repeat(1, repeats, repeats, 1)[:, :grid, :grid].clone()


def axial_rope(side: int, head_dim: int, *, theta: float, scale: float) -> Rope:
    """cos and sin, each (side * side, head_dim) float32, for `rotate_pairs`; row-major.

    The first half of a head turns with the column, the second with the row. `scale` squeezes the positions of a large
    map into the range of a window, in which the weights were trained.
    """
    quarter = head_dim // 4
    rates = 1.0 / theta ** (torch.arange(quarter, dtype=torch.float32) / quarter)
    steps = torch.arange(side, dtype=torch.float32) * scale
    rows, columns = torch.meshgrid(steps, steps, indexing="ij")
    angles = torch.cat([columns.flatten()[:, None] * rates, rows.flatten()[:, None] * rates], dim=1)
    angles = angles.repeat_interleave(2, dim=1)
    return angles.cos(), angles.sin()


def rotate_pairs(x: Tensor) -> Tensor:
    """(..., d): (a, b) -> (-b, a) for every two neighbors, as a complex product does; not DINOv3's halves."""
    pairs = x.view(*x.shape[:-1], -1, 2)
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)


class _Block(nn.Module):
    def __init__(self, config: Sam3VisionConfig) -> None:
        super().__init__()
        self.norm1 = norm(config.dim)
        self.attn = _RopeAttention(config.dim, config.heads)
        self.norm2 = norm(config.dim)
        self.mlp = FeedForward(config.dim, config.ffn, "gelu")

    def forward(self, x: Tensor, window: int, rope: Rope) -> Tensor:
        """x (N, g, g, C); attention inside each window of `window` x `window` patches."""
        x = x + join_windows(self.attn.rotated(split_windows(self.norm1(x), window), rope), x.shape)
        update: Tensor = self.mlp(self.norm2(x))
        return x + update


class _RopeAttention(Attention):
    def rotated(self, x: Tensor, rope: Rope) -> Tensor:
        """Self-attention of (B, T, C) whose queries and keys are turned by their position."""
        cos, sin = rope
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        q = q * cos + rotate_pairs(q) * sin
        k = k * cos + rotate_pairs(k) * sin
        return self.mix(q, k, v, None)


def split_windows(x: Tensor, window: int) -> Tensor:
    """(N, g, g, C) -> (N * windows, window * window, C); g is a multiple of `window`."""
    batch, grid, _, channels = x.shape
    count = grid // window
    x = x.view(batch, count, window, count, window, channels).transpose(2, 3)
    return x.reshape(batch * count * count, window * window, channels)


def join_windows(x: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `split_windows`."""
    batch, grid, _, channels = shape
    window = int(x.shape[1] ** 0.5)
    count = grid // window
    x = x.view(batch, count, count, window, window, channels).transpose(2, 3)
    return x.reshape(shape)


def pyramid(dim: int, out_dim: int) -> nn.ModuleList:
    """Levels from fine to coarse: (N, dim, g, g) -> (N, out_dim, 4g | 2g | g, ...), each on its own."""
    return nn.ModuleList(_PyramidLevel(dim, out_dim, doublings) for doublings in (2, 1, 0))


class _PyramidLevel(nn.Module):
    """Doubles the map's side `doublings` times, then projects it to the width of the detector."""

    def __init__(self, dim: int, out_dim: int, doublings: int) -> None:
        super().__init__()
        widths = [dim // 2**step for step in range(doublings + 1)]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairwise(widths))
        self.proj1 = nn.Conv2d(widths[-1], out_dim, 1)
        self.proj2 = nn.Conv2d(out_dim, out_dim, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        for step, layer in enumerate(self.up):
            x = layer(nn.functional.gelu(x) if step else x)
        out: Tensor = self.proj2(self.proj1(x))
        return out
