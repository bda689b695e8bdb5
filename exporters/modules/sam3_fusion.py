"""The pre-norm layer of SAM3's geometry encoder and fusion encoder, and the latter: the picture reads the prompt."""

from __future__ import annotations

from torch import Tensor, nn

from vtk.exporters.modules.sam3_config import Sam3Config
from vtk.exporters.modules.sam3_layers import Attention, FeedForward, norm


class FusionLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward, each on normalized input and added back."""

    def __init__(self, dim: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.norm1 = norm(dim)
        self.self_attn = Attention(dim, heads)
        self.norm2 = norm(dim)
        self.cross_attn = Attention(dim, heads)
        self.norm3 = norm(dim)
        self.mlp = FeedForward(dim, ffn, "relu")

    def forward(
        self,
        x: Tensor,
        position: Tensor | None,
        self_bias: Tensor | None,
        key: Tensor,
        value: Tensor,
        cross_bias: Tensor | None,
    ) -> Tensor:
        """x (1, N, dim), with `position` added to its queries and keys, then reads key and value (1, K, dim)."""
        y = self.norm1(x)
        placed = y if position is None else y + position
        x = x + self.self_attn(placed, placed, y, self_bias)
        x = x + self.cross_attn(self.norm2(x), key, value, cross_bias)
        update: Tensor = self.mlp(self.norm3(x))
        return x + update


class Sam3Fusion(nn.Module):
    """The DETR encoder (facebookresearch/sam3, encoder.py): the coarsest map, refined by the prompt."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            FusionLayer(config.dim, config.heads, config.encoder_ffn) for _ in range(config.encoder_depth)
        )

    def forward(self, features: Tensor, positions: Tensor, prompt: Tensor, prompt_bias: Tensor) -> Tensor:
        """features (1, T, D), positions (1, T, D), prompt (1, L, D) -> (1, T, D)."""
        for layer in self.layers:
            features = layer(features, positions, None, prompt, prompt, prompt_bias)
        return features
