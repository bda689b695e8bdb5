"""SAM3's encoder of box prompts: what a box says (where, how large, wanted or not) and what the picture shows in it.

Source: facebookresearch/sam3, geometry_encoders.py. The official program runs it for every prompt: without a box its
class token alone joins the text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vtk.exporters.modules.sam3_config import Sam3Config
from vtk.exporters.modules.sam3_fusion import FusionLayer
from vtk.exporters.modules.sam3_layers import cxcywh_to_xyxy, norm, padding_bias, sine_embedding


class Sam3Geometry(nn.Module):
    """Boxes to prompt tokens. A token's place in the sequence means nothing, so slots keep theirs and none is moved."""

    def __init__(self, config: Sam3Config) -> None:
        super().__init__()
        dim = config.dim
        self.dim, self.roi = dim, config.roi
        self.label_embed = nn.Embedding(2, dim)
        self.cls_embed = nn.Embedding(1, dim)
        self.boxes_direct_project = nn.Linear(4, dim)
        self.boxes_pool_project = nn.Conv2d(dim, dim, config.roi)
        self.boxes_pos_enc_project = nn.Linear(dim + 2, dim)
        self.vision_norm = norm(dim)
        self.final_proj = nn.Linear(dim, dim)
        self.prompt_norm = norm(dim)
        self.layers = nn.ModuleList(
            FusionLayer(dim, config.heads, config.geometry_ffn) for _ in range(config.geometry_depth)
        )
        self.output_norm = norm(dim)

    def forward(self, boxes: Tensor, labels: Tensor, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """boxes (1, K, 4) cxcywh in 0..1, labels (1, K) int64, features (1, D, g, g), positions (1, g * g, D).

        Returns tokens (1, K + 1, D), the class token last, and which of them count (1, K + 1) int64.
        """
        tokens = torch.cat([self._embed(boxes, labels, features), self.cls_embed.weight[None]], dim=1)
        valid = torch.cat([(labels >= 0).to(torch.int64), torch.ones_like(labels[:, :1])], dim=1)
        tokens = self.prompt_norm(self.final_proj(tokens))
        flat, bias = features.flatten(2).transpose(1, 2), padding_bias(valid)
        for layer in self.layers:
            tokens = layer(tokens, None, bias, flat + positions, flat, None)
        return self.output_norm(tokens), valid

    def _embed(self, boxes: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        normalized = self.vision_norm(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        pooled = self.boxes_pool_project(pool_boxes(normalized, boxes[0], self.roi)).flatten(1)[None]
        x, y = (sine_embedding(boxes[..., axis], self.dim // 2) for axis in (0, 1))
        where = torch.cat([y, x, boxes[..., 3:4], boxes[..., 2:3]], dim=-1)
        label = self.label_embed((labels > 0).to(torch.int64))
        embedded: Tensor = label + self.boxes_direct_project(boxes) + pooled + self.boxes_pos_enc_project(where)
        return embedded


def pool_boxes(features: Tensor, boxes: Tensor, bins: int) -> Tensor:
    """RoIAlign (He et al. 2017) of features (1, D, h, w) in boxes (K, 4) cxcywh of 0..1 -> (K, D, bins, bins).

    Equal to torchvision's `roi_align(aligned=False, sampling_ratio=-1)` for boxes no larger than the picture. The
    samples of a box form a grid and bilinear weights are products, so it is one matrix per axis: dense and static,
    where engines have no RoiAlign or their own idea of it.
    """
    height, width = features.shape[-2:]
    xyxy = cxcywh_to_xyxy(boxes)
    rows = _axis_weights(xyxy[:, 1] * height, xyxy[:, 3] * height, height, bins)
    columns = _axis_weights(xyxy[:, 0] * width, xyxy[:, 2] * width, width, bins)
    return rows[:, None] @ features @ columns[:, None].transpose(-2, -1)


def _axis_weights(start: Tensor, end: Tensor, size: int, bins: int) -> Tensor:
    """(K,) edges in pixels -> (K, bins, size): how much each pixel counts in the mean of each bin."""
    length = (end - start).clamp(min=1.0)[:, None, None]
    most = -(-size // bins)
    step = length / bins
    count = step.ceil().clamp(max=float(most))
    sample = torch.arange(most, dtype=torch.float32)
    at = start[:, None, None] + torch.arange(bins, dtype=torch.float32)[:, None] * step + (sample + 0.5) * step / count
    counts = (sample < count) & (at >= -1) & (at <= size)
    pixels = torch.arange(size, dtype=torch.float32)
    hat = (1 - (at.clamp(0, size - 1)[..., None] - pixels).abs()).clamp(min=0)
    return (hat * (counts.to(hat.dtype) / count)[..., None]).sum(dim=2)
