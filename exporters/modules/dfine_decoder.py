"""The D-FINE decoder: query selection, deformable layers, boxes refined as distributions of edge offsets.

Source: D-FINE (arXiv 2410.13842) and its repository; DEIM (2412.04234) is the same with another activation. Attribute
names are those of the official checkpoints. What training alone uses (denoising, heads of earlier layers) is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import embedding

from vtk.exporters.modules.deformable import MSDeformableAttention
from vtk.exporters.modules.grids import anchor_logits
from vtk.exporters.modules.layers import MLP, ConvNorm, SelfAttention, activation

# Statistics and width of the location quality head (D-FINE repository).
LQE_TOP = 4
LQE_HIDDEN = 64
INVERSE_SIGMOID_EPS = 1e-5
POSITION_LIMIT = 10.0


@dataclass(frozen=True)
class DecoderConfig:
    """in_channels: of each encoder map. points: per level. up, reg_scale and reg_max shape the bin values."""

    in_channels: tuple[int, ...]
    dim: int
    ffn: int
    layers: int
    heads: int
    points: tuple[int, ...]
    classes: int
    queries: int
    reg_max: int
    reg_scale: float
    up: float
    act: str


def bin_values(reg_max: int, up: float, reg_scale: float) -> torch.Tensor:
    """(reg_max + 1,) float32 offsets W(n) of the bins: zero in the middle, growing geometrically to both ends.

    Source: D-FINE, equation of the weighting function; the two outermost bins lie at twice the bound.
    """
    bound = abs(up) * abs(reg_scale)
    step = (bound + 1) ** (2 / (reg_max - 2))
    right = [step**i - 1 for i in range(1, reg_max // 2)] + [2 * bound]
    return torch.tensor([-value for value in reversed(right)] + [0.0] + right)


def select_top(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Indices (B, count) of the highest scores (B, N) in falling order; among equals the lower index comes first.

    That is the rule of ONNX TopK, which torch.topk leaves open; so the reference does not depend on chance.
    """
    if torch.compiler.is_exporting():
        return scores.topk(count, dim=-1).indices
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def inverse_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Logit of x in 0..1, both x and 1 - x held above 1e-5."""
    return torch.log(x.clamp(min=INVERSE_SIGMOID_EPS) / (1 - x).clamp(min=INVERSE_SIGMOID_EPS))


def shift_edges(boxes: torch.Tensor, distances: torch.Tensor, reg_scale: float) -> torch.Tensor:
    """Boxes cxcywh (B, Q, 4) with their edges moved outwards by `distances` (left, top, right, bottom) / reg_scale."""
    center, size = boxes.chunk(2, dim=-1)
    before, after = distances.chunk(2, dim=-1)
    unit = size / reg_scale
    return torch.cat([center + (after - before) * unit / 2, size + (before + after) * unit], dim=-1)


class Gate(nn.Module):
    """Learned mix of the stream before and after cross-attention, normalized."""

    def __init__(self, dim: int, norm: nn.Module) -> None:
        super().__init__()
        self.gate = nn.Linear(2 * dim, 2 * dim)
        self.norm = norm

    def forward(self, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
        keep, take = self.gate(torch.cat([before, after], dim=-1)).sigmoid().chunk(2, dim=-1)
        y: torch.Tensor = self.norm(keep * before + take * after)
        return y


class DecoderLayer(nn.Module):
    """Self-attention, deformable cross-attention behind a gate, feed-forward."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        dim = config.dim
        self.self_attn = SelfAttention(dim, config.heads)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attn = MSDeformableAttention(dim, config.heads, config.points)
        self.gateway = Gate(dim, nn.LayerNorm(dim))
        self.linear1 = nn.Linear(dim, config.ffn)
        self.linear2 = nn.Linear(config.ffn, dim)
        self.norm3 = nn.LayerNorm(dim)
        self.act = activation(config.act)

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        x = self.norm1(x + self.self_attn(x, position))
        x = self.gateway(x, self.cross_attn(x + position, boxes, values))
        y: torch.Tensor = self.norm3(x + self.linear2(self.act(self.linear1(x))))
        return y


class QualityHead(nn.Module):
    """One number per query, added to its logits: how peaked the distributions of its four edges are."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.reg_conf = MLP(4 * (LQE_TOP + 1), LQE_HIDDEN, 1, 2, act=act)

    def forward(self, edges: torch.Tensor) -> torch.Tensor:
        """edges: (B, Q, 4, bins) probabilities -> (B, Q, 1)."""
        top = edges.topk(LQE_TOP, dim=-1).values
        y: torch.Tensor = self.reg_conf(torch.cat([top, top.mean(dim=-1, keepdim=True)], dim=-1).flatten(2))
        return y


class Projection(nn.Module):
    """Linear layer and layer norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.proj(x))
        return y


class LayerStack(nn.Module):
    """Holds the layers and the quality head of the last one under their official names."""

    def __init__(self, config: DecoderConfig, layer: Callable[[DecoderConfig], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
        self.lqe_layers = nn.ModuleDict({str(config.layers - 1): QualityHead(config.act)})


class RefiningDecoder(nn.Module):
    """Encoder maps, finest first, to (logits (B, Q, classes), boxes (B, Q, 4) cxcywh in 0..1) of the last layer.

    What D-FINE and its successors share; they differ in their layers, in what is selected, and in how often the boxes
    become a position.
    """

    anchors: torch.Tensor
    valid: torch.Tensor
    bins: torch.Tensor

    def __init__(
        self,
        config: DecoderConfig,
        *,
        sizes_hw: list[tuple[int, int]],
        layer: Callable[[DecoderConfig], nn.Module],
        position_head: MLP,
    ) -> None:
        super().__init__()
        dim, act, last = config.dim, config.act, str(config.layers - 1)
        self.config = config
        self.input_proj = nn.ModuleList(
            ConvNorm(channels, dim, 1) if channels != dim else nn.Identity() for channels in config.in_channels
        )
        self.enc_score_head = nn.Linear(dim, config.classes)
        self.enc_bbox_head = MLP(dim, dim, 4, 3, act=act)
        self.query_pos_head = position_head
        self.pre_bbox_head = MLP(dim, dim, 4, 3, act=act)
        self.decoder = LayerStack(config, layer)
        edge_bins = 4 * (config.reg_max + 1)
        self.dec_bbox_head = nn.ModuleList(MLP(dim, dim, edge_bins, 3, act=act) for _ in range(config.layers))
        self.dec_score_head = nn.ModuleDict({last: nn.Linear(dim, config.classes)})
        anchors, valid = anchor_logits(sizes_hw)
        self.register_buffer("anchors", anchors, persistent=False)
        self.register_buffer("valid", valid.float(), persistent=False)
        self.register_buffer("bins", bin_values(config.reg_max, config.up, config.reg_scale), persistent=False)

    def forward(self, maps: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        values = [proj(x) for proj, x in zip(self.input_proj, maps, strict=True)]
        queries, boxes = self._select(torch.cat([value.flatten(2) for value in values], dim=2).transpose(1, 2))
        return self._refine(queries, boxes, values)

    def _candidates(self, memory: torch.Tensor) -> torch.Tensor:
        """What of the encoder's tokens (B, N, dim) competes to become queries."""
        return memory

    def _position(self, boxes: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        """Embedding (B, Q, dim) of a layer's reference boxes; `before` is that of the layer before it, if any."""
        position: torch.Tensor = self.query_pos_head(boxes).clamp(-POSITION_LIMIT, POSITION_LIMIT)
        return position

    def _select(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens with the highest class score become queries: features (B, Q, dim) and boxes (B, Q, 4)."""
        memory = self._candidates(memory * self.valid)
        top = select_top(self.enc_score_head(memory).amax(dim=-1), self.config.queries)
        queries = memory.gather(1, top[..., None].expand(-1, -1, memory.shape[-1]))
        boxes: torch.Tensor = (self.enc_bbox_head(queries) + embedding(top, self.anchors)).sigmoid()
        return queries, boxes

    def _refine(
        self, queries: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, previous = queries, torch.zeros_like(queries)
        initial, corners = boxes, torch.zeros_like(boxes[..., :1])
        position = None
        for index, (layer, head) in enumerate(zip(self.decoder.layers, self.dec_bbox_head, strict=True)):
            position = self._position(boxes, position)
            x = layer(x, position, boxes, values)
            if index == 0:
                initial = (self.pre_bbox_head(x) + inverse_sigmoid(boxes)).sigmoid()
            corners = corners + head(x + previous)
            edges = corners.unflatten(-1, (4, -1)).softmax(dim=-1)
            boxes = shift_edges(initial, edges @ self.bins, self.config.reg_scale)
            previous = x
        last = str(self.config.layers - 1)
        logits = self.dec_score_head[last](x) + self.decoder.lqe_layers[last](edges)
        return logits, boxes


class DFineDecoder(RefiningDecoder):
    """Tokens are projected before the selection, and each layer sees the position of the boxes so far."""

    def __init__(self, config: DecoderConfig, *, sizes_hw: list[tuple[int, int]]) -> None:
        position_head = MLP(4, 2 * config.dim, config.dim, 2, act=config.act)
        super().__init__(config, sizes_hw=sizes_hw, layer=DecoderLayer, position_head=position_head)
        self.enc_output = Projection(config.dim)

    def _candidates(self, memory: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.enc_output(memory)
        return y
