"""SAM3's prompt encoder: the text half of CLIP (Radford et al. 2021), every token kept, projected to the detector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vtk.exporters.modules.sam3_config import MASKED, Sam3TextConfig
from vtk.exporters.modules.sam3_layers import Attention, FeedForward, norm


class Sam3Text(nn.Module):
    """Weights and layers."""

    def __init__(self, config: Sam3TextConfig, out_dim: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocabulary, config.dim)
        self.position = nn.Parameter(torch.zeros(config.context, config.dim))
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.depth))
        self.norm = norm(config.dim)
        self.projection = nn.Linear(config.dim, out_dim)


class Sam3TextEncoder(nn.Module):
    """Export wrapper: input_ids and attention_mask (1, T) int64 -> text_features (1, T, D), 0 where the mask is 0.

    A token sees only those before it, so padding never reaches a word whatever its id is; zeroed, it does not reach
    the output either.
    """

    causal: Tensor

    def __init__(self, text: Sam3Text) -> None:
        super().__init__()
        self.text = text
        context = text.position.shape[0]
        self.register_buffer("causal", torch.full((1, 1, context, context), MASKED).triu(1))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        x = self.text.token_embedding(input_ids) + self.text.position
        for layer in self.text.layers:
            x = layer(x, self.causal)
        features = self.text.projection(self.text.norm(x))
        return (features * attention_mask.to(features.dtype)[..., None],)


class _Layer(nn.Module):
    def __init__(self, config: Sam3TextConfig) -> None:
        super().__init__()
        self.norm1 = norm(config.dim)
        self.attn = Attention(config.dim, config.heads)
        self.norm2 = norm(config.dim)
        self.mlp = FeedForward(config.dim, config.ffn, "gelu")

    def forward(self, x: Tensor, causal: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, causal)
        update: Tensor = self.mlp(self.norm2(x))
        return x + update
