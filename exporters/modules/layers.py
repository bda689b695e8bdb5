"""Small layers that the detectors share. Attribute names are those of the official checkpoints."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def activation(name: str) -> nn.Module:
    """A fresh activation module: identity, relu, silu or gelu (exact, not the tanh form)."""
    return _ACTIVATIONS[name]()


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm, activation; padded to keep the size at stride 1."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: int,
        *,
        stride: int = 1,
        groups: int = 1,
        act: str = "identity",
    ) -> None:
        super().__init__()
        padding = (kernel - 1) // 2
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)
        self.act = activation(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.norm(self.conv(x)))
        return y


class MLP(nn.Module):
    """`depth` linear layers of `hidden` features with an activation between them."""

    def __init__(self, in_dim: int, hidden: int, out_dim: int, depth: int, *, act: str) -> None:
        super().__init__()
        dims = [in_dim, *[hidden] * (depth - 1), out_dim]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(dims))
        self.act = activation(act)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        y: torch.Tensor = self.layers[-1](x)
        return y


class SelfAttention(nn.Module):
    """Multi-head attention of a set with itself; a position is added to queries and keys, never to values.

    Parameters are laid out as in `torch.nn.MultiheadAttention`. Scores and softmax are written out, so that the graph
    is the same for every opset and their precision can be chosen.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """x (B, N, dim), position (B or 1, N, dim) -> (B, N, dim)."""
        batch, tokens, dim = x.shape
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        inputs = (x + position, x + position, x)
        query, key, value = (
            nn.functional.linear(source, weight, bias).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for source, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).reshape(batch, tokens, dim)
        y: torch.Tensor = self.out_proj(mixed)
        return y
