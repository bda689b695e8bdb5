"""The image model of SAM3 (Carion et al. 2025) as graphs: picture, text, and what finds one in the other.

The reference is the official program (facebookresearch/sam3), which transformers' port does not reproduce: that one
skips the geometry encoder where a prompt has no box, and takes another epsilon for the picture's norms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vtk.exporters.modules.sam3_config import Sam3Config
from vtk.exporters.modules.sam3_detr import Sam3Decoder
from vtk.exporters.modules.sam3_fusion import Sam3Fusion
from vtk.exporters.modules.sam3_geometry import Sam3Geometry
from vtk.exporters.modules.sam3_layers import cxcywh_to_xyxy, map_positions, padding_bias
from vtk.exporters.modules.sam3_masks import Sam3Masks, Sam3Scoring
from vtk.exporters.modules.sam3_points import Sam3Points
from vtk.exporters.modules.sam3_text import Sam3Text
from vtk.exporters.modules.sam3_vision import Sam3Vision


class Sam3(nn.Module):
    """All weights. What does not reach an output is left out: the fourth pyramid level, CLIP's own projection."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        self.vision = Sam3Vision(config.vision, config.dim)
        self.text = Sam3Text(config.text, config.dim)
        self.geometry = Sam3Geometry(config)
        self.encoder = Sam3Fusion(config)
        self.decoder = Sam3Decoder(config)
        self.scoring = Sam3Scoring(config)
        self.masks = Sam3Masks(config)
        points = config.point_prompts
        self.points = None if points is None else Sam3Points(points, config.vision.dim)


class Sam3Detector(nn.Module):
    """Export wrapper: the three maps, text and boxes -> masks, boxes_xyxy, logits, presence, semantic.

    fpn_* (1, D, side, side), text_features (1, T, D), attention_mask (1, T) int64, boxes (1, K, 4) cxcywh in 0..1,
    box_labels (1, K) int64: 1 show such things, 0 not such, below 0 no box.
    """

    positions: Tensor

    def __init__(self, model: Sam3, config: Sam3Config) -> None:
        super().__init__()
        self.geometry, self.encoder, self.decoder = model.geometry, model.encoder, model.decoder
        self.scoring, self.masks = model.scoring, model.masks
        self.register_buffer("positions", map_positions(config.grid, config.dim))

    def forward(
        self,
        fpn_0: Tensor,
        fpn_1: Tensor,
        fpn_2: Tensor,
        text_features: Tensor,
        attention_mask: Tensor,
        boxes: Tensor,
        box_labels: Tensor,
    ) -> tuple[Tensor, ...]:
        tokens, valid = self.geometry(boxes, box_labels, fpn_2, self.positions)
        prompt = torch.cat([text_features, tokens], dim=1)
        valid = torch.cat([attention_mask, valid], dim=1)
        bias = padding_bias(valid)
        fused = self.encoder(fpn_2.flatten(2).transpose(1, 2), self.positions, prompt, bias)
        queries, found, presence = self.decoder(fused, self.positions, prompt, bias)
        logits = self.scoring(queries, prompt, valid)
        masks, semantic = self.masks(queries, (fpn_0, fpn_1, fpn_2), fused, prompt, bias)
        return masks, cxcywh_to_xyxy(found), logits, presence, semantic
