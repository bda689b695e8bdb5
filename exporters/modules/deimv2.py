"""DEIMv2 as one module: images in, logits and boxes out.

Source: DEIMv2 (arXiv 2509.20787) and its repository. Its decoder differs from that of D-FINE: tokens compete to become
queries as they are; the boxes become a position once and not in every layer, by a head of three layers; norms are
RMSNorm; and the feed-forward part is SwiGLU. The smallest sizes have no gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from vtk.exporters.modules.deformable import MSDeformableAttention
from vtk.exporters.modules.dfine_decoder import DecoderConfig, Gate, RefiningDecoder
from vtk.exporters.modules.layers import MLP, SelfAttention

RMS_NORM_EPS = 1e-6


class RMSNorm(nn.Module):
    """x divided by its root mean square over the last axis, times a learned scale."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + RMS_NORM_EPS) * self.scale


class SwiGLU(nn.Module):
    """Feed-forward part; `rows` of the first matrix hold the gate and the value, half each."""

    def __init__(self, dim: int, rows: int) -> None:
        super().__init__()
        self.w12 = nn.Linear(dim, rows)
        self.w3 = nn.Linear(rows // 2, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = self.w12(x).chunk(2, dim=-1)
        y: torch.Tensor = self.w3(nn.functional.silu(gate) * value)
        return y


class DEIMv2Layer(nn.Module):
    """Self-attention, deformable cross-attention behind a gate or added, feed-forward."""

    def __init__(self, config: DecoderConfig, *, gateway: bool) -> None:
        super().__init__()
        dim = config.dim
        self.self_attn = SelfAttention(dim, config.heads)
        self.norm1 = RMSNorm(dim)
        self.cross_attn = MSDeformableAttention(dim, config.heads, config.points)
        if gateway:
            self.gateway = Gate(dim, RMSNorm(dim))
        else:
            self.norm2 = RMSNorm(dim)
        self.swish_ffn = SwiGLU(dim, config.ffn)
        self.norm3 = RMSNorm(dim)
        self.has_gateway = gateway

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        x = self.norm1(x + self.self_attn(x, position))
        seen = self.cross_attn(x + position, boxes, values)
        x = self.gateway(x, seen) if self.has_gateway else self.norm2(x + seen)
        y: torch.Tensor = self.norm3(x + self.swish_ffn(x))
        return y


class DEIMv2Decoder(RefiningDecoder):
    """Tokens compete as they are, and all layers see the position of the selected boxes."""

    def __init__(self, config: DecoderConfig, *, gateway: bool, sizes_hw: list[tuple[int, int]]) -> None:
        position_head = MLP(4, config.dim, config.dim, 3, act=config.act)
        layer = partial(DEIMv2Layer, gateway=gateway)
        super().__init__(config, sizes_hw=sizes_hw, layer=layer, position_head=position_head)

    def _position(self, boxes: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        return super()._position(boxes, None) if before is None else before


class DEIMv2Model(nn.Module):
    """images (B, 3, *input_hw) -> logits (B, Q, classes), boxes (B, Q, 4) cxcywh as shares of the picture."""

    def __init__(self, backbone: nn.Module, encoder: nn.Module, decoder: DEIMv2Decoder) -> None:
        super().__init__()
        self.backbone, self.encoder, self.decoder = backbone, encoder, decoder

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs: tuple[torch.Tensor, torch.Tensor] = self.decoder(self.encoder(self.backbone(images)))
        return outputs
