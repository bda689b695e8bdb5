"""Tokens and pixels that read each other in turn, as the mask decoders of SAM and SAM 2 have it.

Sources: facebookresearch/sam3 (sam/transformer.py), Kirillov et al. 2023.
"""

from __future__ import annotations

from torch import Tensor, nn

from vtk.exporters.modules.sam3_config import Sam3PointConfig
from vtk.exporters.modules.sam3_layers import Attention, FeedForward


class TwoWayTransformer(nn.Module):
    """What a token or pixel was at first is added to it wherever it asks or is looked up, never to what is read."""

    def __init__(self, config: Sam3PointConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config, is_first=index == 0) for index in range(config.depth))
        self.final_attn = Attention(config.dim, config.heads, config.inner)
        self.final_norm = nn.LayerNorm(config.dim)

    def forward(self, tokens: Tensor, pixels: Tensor, positions: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """tokens (1, L, D), pixels and positions (1, T, D), bias (1, 1, 1, L) -> tokens and pixels in these shapes."""
        x = tokens
        for layer in self.layers:
            x, pixels = layer(x, tokens, pixels, positions, bias)
        x = self.final_norm(x + self.final_attn(x + tokens, pixels + positions, pixels))
        return x, pixels


class _Layer(nn.Module):
    """Post-norm. The first one's self-attention takes tokens as they are, and its result takes their place."""

    def __init__(self, config: Sam3PointConfig, *, is_first: bool) -> None:
        super().__init__()
        self.is_first = is_first
        dim, heads, inner = config.dim, config.heads, config.inner
        self.self_attn = Attention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        self.to_image = Attention(dim, heads, inner)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = FeedForward(dim, config.ffn, "relu")
        self.norm3 = nn.LayerNorm(dim)
        self.to_tokens = Attention(dim, heads, inner)
        self.norm4 = nn.LayerNorm(dim)

    def forward(
        self, x: Tensor, tokens: Tensor, pixels: Tensor, positions: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.is_first:
            x = self.self_attn(x, x, x, bias)
        else:
            placed = x + tokens
            x = x + self.self_attn(placed, placed, x, bias)
        x = self.norm1(x)
        x = self.norm2(x + self.to_image(x + tokens, pixels + positions, pixels))
        x = self.norm3(x + self.mlp(x))
        return x, self.norm4(pixels + self.to_tokens(pixels + positions, x + tokens, x, bias))
