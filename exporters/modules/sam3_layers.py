"""What the parts of SAM3 share: attention, the feed-forward block, and the sine embedding of positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vtk.exporters.modules.layers import activation
from vtk.exporters.modules.sam3_config import MASKED, NORM_EPS

TEMPERATURE = 10000.0


class Attention(nn.Module):
    """Multi-head attention with separate projections, which both layouts fill without a copy.

    Scores and softmax are written out and the query is scaled first: the graph is the same at every opset, nothing
    overflows in half precision, and no fully masked row ever makes a NaN. inner: width of all heads together, `dim`
    unless given.
    """

    def __init__(self, dim: int, heads: int, inner: int | None = None) -> None:
        super().__init__()
        width = inner or dim
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.q_proj = nn.Linear(dim, width)
        self.k_proj = nn.Linear(dim, width)
        self.v_proj = nn.Linear(dim, width)
        self.o_proj = nn.Linear(width, dim)

    def split(self, x: Tensor) -> Tensor:
        """(B, N, inner) -> (B, heads, N, inner / heads)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Split q, k, v and a bias that broadcasts to (B, heads, Q, K) -> (B, Q, dim), projected."""
        scores = (query * self.scale) @ key.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        out: Tensor = self.o_proj(mixed)
        return out

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
        """query (B, Q, dim), key and value (B, K, dim) -> (B, Q, dim)."""
        q, k, v = self.split(self.q_proj(query)), self.split(self.k_proj(key)), self.split(self.v_proj(value))
        return self.mix(q, k, v, bias)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them."""

    def __init__(self, dim: int, hidden: int, act: str) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class GroupNorm(nn.GroupNorm):
    """nn.GroupNorm of (B, C, H, W) whose means are taken over rows first, then over what is left.

    One sum over the 2.7 million values of a group at full size loses four digits in ONNX Runtime.
    """

    def forward(self, input: Tensor) -> Tensor:
        groups = input.view(input.shape[0], self.num_groups, -1, input.shape[-1])
        centered = groups - _mean(groups)
        normalized = (centered / (_mean(centered * centered) + self.eps).sqrt()).view(input.shape)
        return normalized * self.weight[:, None, None] + self.bias[:, None, None]


def _mean(x: Tensor) -> Tensor:
    """Over the last two axes, which stay."""
    return x.mean(dim=-1, keepdim=True).mean(dim=-2, keepdim=True)


def norm(dim: int) -> nn.LayerNorm:
    """A LayerNorm with the epsilon of the official code."""
    return nn.LayerNorm(dim, eps=NORM_EPS)


def padding_bias(valid: Tensor) -> Tensor:
    """(B, K) of 1 and 0 -> (B, 1, 1, K) float32: nothing attends to where `valid` is 0."""
    return ((1 - valid.to(torch.float32)) * MASKED)[:, None, None]


def sine_embedding(values: Tensor, features: int) -> Tensor:
    """(..., n) in 0..1 -> (..., n, features): sine and cosine, alternating, of 2 pi times the value.

    As in DETR (Carion et al. 2020) and the official `PositionEmbeddingSine`.
    """
    exponents = torch.arange(0, features, 2, dtype=torch.float32) / features
    angles = values[..., None] * (2 * math.pi) / TEMPERATURE**exponents
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def map_positions(side: int, dim: int) -> Tensor:
    """(1, side * side, dim) float32, row-major: half of the features for the row, then half for the column."""
    steps = torch.arange(1, side + 1, dtype=torch.float32) / (side + 1e-6)
    waves = sine_embedding(steps, dim // 2)
    rows, columns = waves[:, None].expand(side, side, -1), waves[None].expand(side, side, -1)
    return torch.cat([rows, columns], dim=-1).reshape(1, side * side, dim)


def cxcywh_to_xyxy(boxes: Tensor) -> Tensor:
    """(..., 4) -> (..., 4)."""
    center, half = boxes[..., :2], boxes[..., 2:] * 0.5
    return torch.cat([center - half, center + half], dim=-1)
