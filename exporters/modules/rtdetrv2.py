"""RT-DETRv2 and what DEIM trains of it as one module: images in, logits and boxes out.

Sources: RT-DETR (arXiv 2304.08069), RT-DETRv2 (2407.17140) and its repository, DEIM (2412.04234). Attribute names are
those of the official checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import embedding

from vtk.exporters.modules.deformable import MSDeformableAttention
from vtk.exporters.modules.dfine import map_sizes
from vtk.exporters.modules.dfine_decoder import Projection, inverse_sigmoid, select_top
from vtk.exporters.modules.grids import anchor_logits
from vtk.exporters.modules.hybrid_encoder import CSPRep, HybridEncoder, HybridEncoderConfig
from vtk.exporters.modules.layers import MLP, ConvNorm, SelfAttention, activation
from vtk.exporters.modules.presnet import PResNet, PResNetConfig


@dataclass(frozen=True)
class RTDetrLayerConfig:
    """Of one decoder layer. heads: of self-attention, then of deformable attention. points: per level."""

    dim: int
    ffn: int
    heads: tuple[int, int]
    points: tuple[int, ...]
    act: str


@dataclass(frozen=True)
class RTDetrDecoderConfig:
    """layers: in the checkpoint; `used` of them run. position_depth: layers of `query_pos_head`."""

    in_channels: tuple[int, ...]
    dim: int
    ffn: int
    layers: int
    used: int
    heads: int
    points: tuple[int, ...]
    classes: int
    queries: int
    act: str
    position_depth: int

    @property
    def layer(self) -> RTDetrLayerConfig:
        return RTDetrLayerConfig(self.dim, self.ffn, (self.heads, self.heads), self.points, self.act)


class CSPRepProjected(CSPRep):
    """The block of RT-DETR: two branches of `width` channels, summed and projected where the width is another."""

    def __init__(self, in_channels: int, out_channels: int, width: int, bottlenecks: int) -> None:
        super().__init__(in_channels, width, bottlenecks)
        self.conv3 = ConvNorm(width, out_channels, 1, act="silu") if width != out_channels else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv3(super().forward(x))
        return y


class RTDetrEncoder(HybridEncoder):
    """The hybrid encoder as it was first: activations between levels, and plain convolutions from level to level."""

    def __init__(self, config: HybridEncoderConfig, *, coarsest_hw: tuple[int, int]) -> None:
        super().__init__(config, coarsest_hw=coarsest_hw)
        hidden, steps = config.hidden, len(config.in_channels) - 1
        self.lateral_convs = nn.ModuleList(ConvNorm(hidden, hidden, 1, act="silu") for _ in range(steps))
        self.downsample_convs = nn.ModuleList(ConvNorm(hidden, hidden, 3, stride=2, act="silu") for _ in range(steps))

    def _fusion_block(self, config: HybridEncoderConfig) -> nn.Module:
        return CSPRepProjected(2 * config.hidden, config.hidden, config.fusion_width, config.bottlenecks)


class ProjectedAttention(MSDeformableAttention):
    """Deformable attention with a projection before and after it."""

    def __init__(self, dim: int, heads: int, points: tuple[int, ...]) -> None:
        super().__init__(dim, heads, points)
        self.value_proj = nn.Linear(dim, dim)
        self.output_proj = nn.Linear(dim, dim)

    def forward(self, query: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]) -> torch.Tensor:
        projected = [self.value_proj(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(x.shape) for x in values]
        y: torch.Tensor = self.output_proj(super().forward(query, boxes, projected))
        return y


class RTDetrLayer(nn.Module):
    """Self-attention, deformable cross-attention, feed-forward, each followed by its norm."""

    def __init__(self, config: RTDetrLayerConfig) -> None:
        super().__init__()
        dim, (self_heads, cross_heads) = config.dim, config.heads
        self.self_attn = SelfAttention(dim, self_heads)
        self.norm1 = nn.LayerNorm(dim)
        self.cross_attn = ProjectedAttention(dim, cross_heads, config.points)
        self.norm2 = nn.LayerNorm(dim)
        self.linear1 = nn.Linear(dim, config.ffn)
        self.linear2 = nn.Linear(config.ffn, dim)
        self.norm3 = nn.LayerNorm(dim)
        self.act = activation(config.act)

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        x = self.norm1(x + self.self_attn(x, position))
        x = self.norm2(x + self.cross_attn(x + position, boxes, values))
        y: torch.Tensor = self.norm3(x + self.linear2(self.act(self.linear1(x))))
        return y


class RTDetrLayers(nn.Module):
    """Holds the layers under their official name."""

    def __init__(self, config: RTDetrDecoderConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(RTDetrLayer(config.layer) for _ in range(config.layers))


class RTDetrDecoder(nn.Module):
    """Encoder maps, finest first, to logits (B, Q, classes) and boxes (B, Q, 4) cxcywh in 0..1."""

    anchors: torch.Tensor
    valid: torch.Tensor

    def __init__(self, config: RTDetrDecoderConfig, *, sizes_hw: list[tuple[int, int]]) -> None:
        super().__init__()
        dim, act = config.dim, config.act
        self.config = config
        self.input_proj = nn.ModuleList(ConvNorm(channels, dim, 1) for channels in config.in_channels)
        self.enc_output = Projection(dim)
        self.enc_score_head = nn.Linear(dim, config.classes)
        self.enc_bbox_head = MLP(dim, dim, 4, 3, act=act)
        wide = 2 * dim if config.position_depth == 2 else dim
        self.query_pos_head = MLP(4, wide, dim, config.position_depth, act=act)
        self.decoder = RTDetrLayers(config)
        self.dec_score_head = nn.ModuleList(nn.Linear(dim, config.classes) for _ in range(config.layers))
        self.dec_bbox_head = nn.ModuleList(MLP(dim, dim, 4, 3, act=act) for _ in range(config.layers))
        anchors, valid = anchor_logits(sizes_hw)
        self.register_buffer("anchors", anchors, persistent=False)
        self.register_buffer("valid", valid.float(), persistent=False)

    def forward(self, maps: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        values = [proj(x) for proj, x in zip(self.input_proj, maps, strict=True)]
        x, boxes = self._select(torch.cat([value.flatten(2) for value in values], dim=2).transpose(1, 2))
        for layer, head in zip(self.decoder.layers[: self.config.used], self.dec_bbox_head, strict=False):
            x = layer(x, self.query_pos_head(boxes), boxes, values)
            boxes = (head(x) + inverse_sigmoid(boxes)).sigmoid()
        return self.dec_score_head[self.config.used - 1](x), boxes

    def _select(self, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens with the highest class score become queries: features (B, Q, dim) and boxes (B, Q, 4)."""
        memory = self.enc_output(memory * self.valid)
        top = select_top(self.enc_score_head(memory).amax(dim=-1), self.config.queries)
        queries = memory.gather(1, top[..., None].expand(-1, -1, memory.shape[-1]))
        boxes: torch.Tensor = (self.enc_bbox_head(queries) + embedding(top, self.anchors)).sigmoid()
        return queries, boxes


class RTDetrModel(nn.Module):
    """images (B, 3, *input_hw) in 0..1 -> logits (B, Q, classes), boxes (B, Q, 4) cxcywh as shares of the picture."""

    def __init__(
        self,
        backbone: PResNetConfig,
        encoder: HybridEncoderConfig,
        decoder: RTDetrDecoderConfig,
        *,
        input_hw: tuple[int, int],
    ) -> None:
        super().__init__()
        sizes_hw = map_sizes(input_hw, len(encoder.in_channels))
        self.backbone = PResNet(backbone, levels=len(sizes_hw))
        self.encoder = RTDetrEncoder(encoder, coarsest_hw=sizes_hw[-1])
        self.decoder = RTDetrDecoder(decoder, sizes_hw=sizes_hw)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs: tuple[torch.Tensor, torch.Tensor] = self.decoder(self.encoder(self.backbone(images)))
        return outputs
