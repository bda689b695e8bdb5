"""A linear classifier on the tokens of a vision transformer (facebookresearch/dinov3, its `linear_head`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vtk.exporters.modules.dino_vit import DinoEmbedder, DinoViT, ViTConfig


class DinoViTWithHead(DinoViT):
    """features: of the head's input, either the class token's or twice as many."""

    def __init__(self, config: ViTConfig, *, features: int, classes: int) -> None:
        super().__init__(config)
        self.linear_head = nn.Linear(features, classes)


class DinoClassifier(nn.Module):
    """Export wrapper for one input size: images (N, 3, H, W) to logits (N, classes).

    The head sees the class token, and where it is twice as wide also the mean of the patches; both normalized.
    """

    def __init__(self, vit: DinoViTWithHead, grid_hw: tuple[int, int]) -> None:
        super().__init__()
        self.embedder = DinoEmbedder(vit, grid_hw)
        self.head = vit.linear_head
        self.takes_patches = vit.linear_head.in_features == 2 * vit.config.dim

    def forward(self, images: Tensor) -> tuple[Tensor]:
        tokens = self.embedder(images)
        cls, patches = tokens[0], tokens[-1]
        return (self.head(torch.cat([cls, patches.mean(dim=1)], dim=1) if self.takes_patches else cls),)
