"""What SAM3's tracker makes of one picture and points on one object: its mask. No memory of other frames is involved.

Source: facebookresearch/sam3 (sam/prompt_encoder.py, sam/mask_decoder.py, sam1_task_predictor.py), which has it from
SAM 2 (Ravi et al. 2024). Masks as prompts are left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vtk.exporters.modules.layers import MLP
from vtk.exporters.modules.sam3_config import Sam3Config, Sam3PointConfig
from vtk.exporters.modules.sam3_layers import padding_bias
from vtk.exporters.modules.sam3_two_way import TwoWayTransformer
from vtk.exporters.modules.sam3_vision import pyramid

# Of a point: not on the object, on it, and the two corners of a box around it.
NUM_LABELS = 4
# Of the official LayerNorm2d; the other norms have torch's own.
UPSCALE_EPS = 1e-6
HEAD_DEPTH = 3


class Sam3Points(nn.Module):
    """All weights: a pyramid of its own on the picture's last map, the prompt's embeddings, and the mask decoder."""

    def __init__(self, config: Sam3PointConfig, vision_dim: int) -> None:
        super().__init__()
        self.neck = pyramid(vision_dim, config.dim)
        self.no_memory = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.prompt = Sam3PointPrompt(config.dim)
        self.decoder = Sam3PointMasks(config)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, C, g, g) -> (N, D / 8, 4g, 4g), (N, D / 4, 2g, 2g), (N, D, g, g), as every prompt's decoding takes them.

        What is added to the last says that no frame came before.
        """
        fine, middle, coarse = (level(x) for level in self.neck)
        return self.decoder.conv_s0(fine), self.decoder.conv_s1(middle), coarse + self.no_memory.view(1, -1, 1, 1)


class Sam3PointPrompt(nn.Module):
    """Positions as sines of random frequencies (Tancik et al. 2020), which are stored, and what is added to them."""

    frequencies: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.zeros(2, dim // 2))
        self.labels = nn.ParameterList(nn.Parameter(torch.zeros(1, dim)) for _ in range(NUM_LABELS))
        self.not_a_point = nn.Embedding(1, dim)
        self.no_mask = nn.Embedding(1, dim)

    def positions(self, xy: Tensor) -> Tensor:
        """(..., 2) in 0..1 -> (..., D)."""
        angles = (2 * xy - 1) @ self.frequencies * (2 * math.pi)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, xy: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """xy (1, P, 2) in 0..1, labels (1, P) int64 -> tokens (1, P + 1, D) and which of them count (1, P + 1) int64.

        The official program ends every prompt with a token that is no point.
        """
        table = torch.cat(list(self.labels))
        embedded = self.positions(xy) + F.embedding(labels.clamp(0, NUM_LABELS - 1), table)
        tokens = torch.cat([embedded, self.not_a_point.weight[None]], dim=1)
        return tokens, torch.cat([(labels >= 0).to(torch.int64), torch.ones_like(labels[:, :1])], dim=1)


class Sam3PointMasks(nn.Module):
    """The tokens that masks and scores are read from, and the layers that make them."""

    def __init__(self, config: Sam3PointConfig) -> None:
        super().__init__()
        dim = config.dim
        self.object_token = nn.Embedding(1, dim)
        self.iou_token = nn.Embedding(1, dim)
        self.mask_tokens = nn.Embedding(config.masks, dim)
        self.transformer = TwoWayTransformer(config)
        self.conv_s0 = nn.Conv2d(dim, dim // 8, 1)
        self.conv_s1 = nn.Conv2d(dim, dim // 4, 1)
        self.up1 = nn.ConvTranspose2d(dim, dim // 4, 2, 2)
        self.up_norm = nn.LayerNorm(dim // 4, eps=UPSCALE_EPS)
        self.up2 = nn.ConvTranspose2d(dim // 4, dim // 8, 2, 2)
        self.hyper = nn.ModuleList(MLP(dim, dim, dim // 8, HEAD_DEPTH, act="relu") for _ in range(config.masks))
        self.iou_head = MLP(dim, config.iou_hidden, config.masks, HEAD_DEPTH, act="relu")
        self.object_head = MLP(dim, dim, 1, HEAD_DEPTH, act="relu")

    def forward(
        self, fine: Tensor, middle: Tensor, coarse: Tensor, positions: Tensor, prompt: Tensor, valid: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Maps of one picture, positions (1, g * g, D), prompt (1, L, D), valid (1, L) int64.

        Returns what `Sam3PointDecoder` does.
        """
        own = torch.cat([self.object_token.weight, self.iou_token.weight, self.mask_tokens.weight])[None]
        bias = padding_bias(torch.cat([torch.ones_like(own[..., 0], dtype=torch.int64), valid], dim=1))
        flat = coarse.flatten(2).transpose(1, 2)
        tokens, flat = self.transformer(torch.cat([own, prompt], dim=1), flat, positions, bias)
        pixels = self._enlarge(flat.transpose(1, 2).reshape(coarse.shape), middle, fine)
        weights = torch.stack([head(tokens[:, 2 + index]) for index, head in enumerate(self.hyper)], dim=1)
        masks = (weights @ pixels.flatten(2)).view(1, -1, *pixels.shape[-2:])
        return masks, self.iou_head(tokens[:, 1]).sigmoid(), self.object_head(tokens[:, 0])

    def _enlarge(self, x: Tensor, middle: Tensor, fine: Tensor) -> Tensor:
        x = (self.up1(x) + middle).permute(0, 2, 3, 1)
        x = F.gelu(self.up_norm(x)).permute(0, 3, 1, 2)
        return F.gelu(self.up2(x) + fine)


class Sam3PointDecoder(nn.Module):
    """Export wrapper: the three maps of `Sam3Points.features` and points -> point_masks, point_ious, point_object.

    points (1, P, 2): x, y in 0..1 of the network input. point_labels (1, P) int64: 1 on the object, 0 not on it, 2 and
    3 the upper left and lower right corner of a box around it, below 0 no point. point_masks (1, M, 4g, 4g) logits: the
    first for several points, the others for a single one. point_ious (1, M) in 0..1: how good each is said to be.
    point_object (1, 1): logit of there being an object.
    """

    positions: Tensor

    def __init__(self, points: Sam3Points, config: Sam3Config) -> None:
        super().__init__()
        self.prompt, self.decoder = points.prompt, points.decoder
        self.half_pixel = 0.5 / config.size
        steps = (torch.arange(config.grid, dtype=torch.float32) + 0.5) / config.grid
        rows, columns = torch.meshgrid(steps, steps, indexing="ij")
        with torch.no_grad():
            centers = torch.stack([columns, rows], dim=-1).reshape(1, -1, 2)
            self.register_buffer("positions", points.prompt.positions(centers))

    def forward(
        self, point_fpn_0: Tensor, point_fpn_1: Tensor, point_fpn_2: Tensor, points: Tensor, point_labels: Tensor
    ) -> tuple[Tensor, ...]:
        prompt, valid = self.prompt(points + self.half_pixel, point_labels)
        coarse = point_fpn_2 + self.prompt.no_mask.weight.view(1, -1, 1, 1)
        outputs: tuple[Tensor, ...] = self.decoder(point_fpn_0, point_fpn_1, coarse, self.positions, prompt, valid)
        return outputs
