"""RF-DETR as one module: images in, logits and boxes out.

Sources: RF-DETR (arXiv 2511.09554) and its repository, LW-DETR (2406.03459), Group DETR (2207.13085). Attribute names
of the decoder are those of the official checkpoints. Of the query groups, which differ in training, the first is here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import embedding

from vtk.exporters.modules.dfine_decoder import select_top
from vtk.exporters.modules.dino_vit import DinoViT, ViTConfig
from vtk.exporters.modules.grids import anchor_boxes
from vtk.exporters.modules.layers import MLP
from vtk.exporters.modules.rfdetr_backbone import Projector, ProjectorConfig, WindowedViT
from vtk.exporters.modules.rtdetrv2 import RTDetrLayer, RTDetrLayerConfig

POSITION_TEMPERATURE = 10000.0
# Stands for transformers' -inf and fits half precision.
NEVER = -1e4


@dataclass(frozen=True)
class RFDetrDecoderConfig:
    """layer: of all `layers`. skip_border: anchors too near to the border are never chosen (as in transformers)."""

    layer: RTDetrLayerConfig
    layers: int
    classes: int
    queries: int
    skip_border: bool


class RFDetrDecoder(nn.Module):
    """Layers, and their queries' positions made of the reference boxes, which stay as they are."""

    omega: torch.Tensor

    def __init__(self, config: RFDetrDecoderConfig) -> None:
        super().__init__()
        dim = config.layer.dim
        self.layers = nn.ModuleList(RTDetrLayer(config.layer) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim)
        self.ref_point_head = MLP(2 * dim, dim, dim, 2, act="relu")
        exponents = torch.arange(dim // 4).float() / (dim // 4)
        self.register_buffer("omega", 2 * math.pi / POSITION_TEMPERATURE**exponents, persistent=False)

    def forward(self, x: torch.Tensor, boxes: torch.Tensor, values: Sequence[torch.Tensor]) -> torch.Tensor:
        position = self.ref_point_head(self._embed(boxes))
        for layer in self.layers:
            x = layer(x, position, boxes, values)
        y: torch.Tensor = self.norm(x)
        return y

    def _embed(self, boxes: torch.Tensor) -> torch.Tensor:
        """Boxes (B, Q, 4) cxcywh to sines and cosines (B, Q, 2 * dim), of y before those of x."""
        swapped = torch.cat([boxes[..., 1:2], boxes[..., :1], boxes[..., 2:]], dim=-1)
        angles = swapped[..., None] * self.omega
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(2)


def refine(boxes: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """Move centers by shares of the size, and scale the size by an exponential. All (B, Q, 4) cxcywh."""
    size = boxes[..., 2:]
    return torch.cat([boxes[..., :2] + delta[..., :2] * size, delta[..., 2:].exp() * size], dim=-1)


class RFDetrModel(nn.Module):
    """Weights of the whole detector, and its second half: maps of the backbone -> logits and boxes.

    Attributes: `vit`, `projector`, and what the official code has in its transformer, under its names.
    """

    anchors: torch.Tensor
    valid: torch.Tensor

    def __init__(self, vit: ViTConfig, projector: ProjectorConfig, decoder: RFDetrDecoderConfig, *, grid: int) -> None:
        super().__init__()
        dim, classes = decoder.layer.dim, decoder.classes
        self.config = decoder
        self.vit = DinoViT(vit)
        self.projector = Projector(projector)
        self.enc_output = nn.Linear(dim, dim)
        self.enc_output_norm = nn.LayerNorm(dim)
        self.enc_out_class_embed = nn.Linear(dim, classes)
        self.enc_out_bbox_embed = MLP(dim, dim, 4, 3, act="relu")
        self.refpoint_embed = nn.Parameter(torch.zeros(decoder.queries, 4))
        self.query_feat = nn.Parameter(torch.randn(decoder.queries, dim))
        self.decoder = RFDetrDecoder(decoder)
        self.class_embed = nn.Linear(dim, classes)
        self.bbox_embed = MLP(dim, dim, 4, 3, act="relu")
        sides = [math.ceil(grid * scale) for scale in projector.scales]
        anchors, valid = anchor_boxes([(side, side) for side in sides])
        self.register_buffer("anchors", anchors * valid, persistent=False)
        self.register_buffer("valid", valid.float(), persistent=False)

    def detect(self, maps: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Backbone maps (B, C, g, g) -> logits (B, Q, classes), boxes (B, Q, 4) cxcywh as shares of the picture."""
        values = self.projector(maps)
        boxes = refine(self._propose(values), self.refpoint_embed[None])
        queries = self.query_feat.expand(boxes.shape[0], -1, -1)
        x = self.decoder(queries, boxes, values)
        return self.class_embed(x), refine(boxes, self.bbox_embed(x))

    def _propose(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Boxes (B, Q, 4) of the tokens with the highest class score, in falling order."""
        tokens = torch.cat([value.flatten(2) for value in values], dim=2).transpose(1, 2)
        memory = self.enc_output_norm(self.enc_output(tokens * self.valid))
        scores = self.enc_out_class_embed(memory).amax(dim=-1)
        if self.config.skip_border:
            scores = scores + NEVER * (1 - self.valid[:, 0])
        top = select_top(scores, self.config.queries)
        chosen = memory.gather(1, top[..., None].expand(-1, -1, memory.shape[-1]))
        return refine(embedding(top, self.anchors), self.enc_out_bbox_embed(chosen))


class RFDetrDetector(nn.Module):
    """Export wrapper: images (B, 3, S, S) -> logits (B, Q, classes), boxes (B, Q, 4) cxcywh."""

    def __init__(self, model: RFDetrModel, *, grid: int, windows: int, after: tuple[int, ...]) -> None:
        super().__init__()
        self.backbone = WindowedViT(model.vit, grid=grid, windows=windows, after=after)
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.detect(self.backbone(images))
