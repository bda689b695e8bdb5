"""SAM3's query decoder: boxes refined layer by layer, attention steered by the box, one token for "is it there at all".

Source: facebookresearch/sam3, decoder.py; box relative positions: Lin et al. 2023 (Plain DETR).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vtk.exporters.modules.layers import MLP
from vtk.exporters.modules.sam3_config import Sam3Config
from vtk.exporters.modules.sam3_layers import Attention, FeedForward, cxcywh_to_xyxy, norm, sine_embedding

LOGIT_EPS = 1e-3
MAX_PRESENCE = 10.0
# Distances are measured in eighths of the picture and compressed so that a whole picture is about 1.
RPB_SCALE = 8.0


class Sam3Decoder(nn.Module):
    """Queries (Q) and the presence token against the fused map and the prompt."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        dim = config.dim
        self.grid = config.grid
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.decoder_depth))
        self.norm = norm(dim)
        self.box_head = MLP(dim, dim, 4, 3, act="relu")
        self.query_embed = nn.Embedding(config.queries, dim)
        self.reference_points = nn.Embedding(config.queries, 4)
        self.presence_token = nn.Embedding(1, dim)
        self.presence_head = MLP(dim, dim, 1, 3, act="relu")
        self.presence_norm = norm(dim)
        self.ref_point_head = MLP(2 * dim, dim, dim, 2, act="relu")
        self.rpb_x = MLP(2, dim, config.heads, 2, act="relu")
        self.rpb_y = MLP(2, dim, config.heads, 2, act="relu")

    def forward(
        self, features: Tensor, positions: Tensor, prompt: Tensor, prompt_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """features and positions (1, g * g, D), prompt (1, L, D).

        Returns normalized queries (1, Q, D), boxes (1, Q, 4) cxcywh in 0..1 and the presence logit (1, 1).
        """
        keys = features + positions
        states = torch.cat([self.presence_token.weight, self.query_embed.weight])[None]
        boxes = self.reference_points.weight.sigmoid()[None]
        for layer in self.layers:
            bias = first_row_zero(self._box_bias(boxes))
            states = layer(
                states, first_row_zero(self._query_positions(boxes)), prompt, prompt_bias, keys, features, bias
            )
            queries = self.norm(states[:, 1:])
            boxes = (inverse_sigmoid(boxes) + self.box_head(queries)).sigmoid()
        presence = self.presence_head(self.presence_norm(states[:, :1])).squeeze(-1)
        return queries, boxes, presence.clamp(-MAX_PRESENCE, MAX_PRESENCE)

    def _query_positions(self, boxes: Tensor) -> Tensor:
        """(1, Q, 4) -> (1, Q, D): y before x, then width and height."""
        half = self.query_embed.weight.shape[1] // 2
        x, y, w, h = sine_embedding(boxes, half).unbind(dim=2)
        embedded: Tensor = self.ref_point_head(torch.cat([y, x, w, h], dim=-1))
        return embedded

    def _box_bias(self, boxes: Tensor) -> Tensor:
        """(1, Q, 4) -> (1, heads, Q, g * g): how far each patch is from the box's edges, as each head weighs it."""
        steps = torch.arange(self.grid, dtype=torch.float32) / self.grid
        edges = cxcywh_to_xyxy(boxes)[:, :, None]
        x: Tensor = self.rpb_x(compress(steps[:, None] - edges[..., 0::2]))
        y: Tensor = self.rpb_y(compress(steps[:, None] - edges[..., 1::2]))
        return (y[:, :, :, None] + x[:, :, None]).flatten(2, 3).permute(0, 3, 1, 2)


def compress(distance: Tensor) -> Tensor:
    """Signed logarithm: 1 becomes about 1.06, 0 stays 0."""
    scaled = distance * RPB_SCALE
    return scaled.sign() * (scaled.abs() + 1).log2() / math.log2(RPB_SCALE)


def first_row_zero(x: Tensor) -> Tensor:
    """Put a row of zeros, the presence token's, before the queries on the axis before the last."""
    return torch.cat([torch.zeros_like(x[..., :1, :]), x], dim=-2)


def inverse_sigmoid(x: Tensor) -> Tensor:
    """The logit of x, kept finite near 0 and 1 as the official code does."""
    return (x.clamp(min=LOGIT_EPS) / (1 - x).clamp(min=LOGIT_EPS)).log()


class _Layer(nn.Module):
    """Post-norm; positions join queries and keys, never values."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        dim, heads = config.dim, config.heads
        self.self_attn = Attention(dim, heads)
        self.self_norm = norm(dim)
        self.text_attn = Attention(dim, heads)
        self.text_norm = norm(dim)
        self.vision_attn = Attention(dim, heads)
        self.vision_norm = norm(dim)
        self.mlp = FeedForward(dim, config.decoder_ffn, "relu")
        self.mlp_norm = norm(dim)

    def forward(
        self,
        x: Tensor,
        position: Tensor,
        prompt: Tensor,
        prompt_bias: Tensor,
        keys: Tensor,
        values: Tensor,
        box_bias: Tensor,
    ) -> Tensor:
        placed = x + position
        x = self.self_norm(x + self.self_attn(placed, placed, x))
        x = self.text_norm(x + self.text_attn(x + position, prompt, prompt, prompt_bias))
        x = self.vision_norm(x + self.vision_attn(x + position, keys, values, box_bias))
        y: Tensor = self.mlp_norm(x + self.mlp(x))
        return y
