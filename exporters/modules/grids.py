"""Constants of a fixed picture size: position embeddings and anchors."""

from __future__ import annotations

import torch

# Size of an anchor on the finest level as a share of the picture; it doubles per level (D-FINE repository).
ANCHOR_SIZE = 0.05
# Anchors nearer than this to 0 or 1 are not used.
ANCHOR_MARGIN = 0.01
# Stands for the official infinity: its sigmoid is exactly 1, and it fits half precision.
INVALID_LOGIT = 1e4


def sincos_position(map_hw: tuple[int, int], dim: int, temperature: float = 10000.0) -> torch.Tensor:
    """(1, h * w, dim) float32 sine-cosine embedding, `dim` a multiple of 4.

    Follows the official code also where it is odd: its slow index runs over the width, so that on a map that is not
    square the embedding is not row-major. Weights trained by that code expect it.
    """
    height, width = map_hw
    slow, fast = torch.meshgrid(torch.arange(width).float(), torch.arange(height).float(), indexing="ij")
    omega = 1.0 / temperature ** (torch.arange(dim // 4).float() / (dim // 4))
    angles = [axis.flatten()[:, None] * omega for axis in (slow, fast)]
    return torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], dim=1)[None]


def anchor_logits(sizes_hw: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Anchors of all levels, finest first, and which are valid.

    Returns logits (sum h * w, 4) float32 of cxcywh in 0..1, and a bool mask (sum h * w, 1). Invalid rows hold
    INVALID_LOGIT.
    """
    boxes, valid = anchor_boxes(sizes_hw)
    logits = torch.log(boxes / (1 - boxes))
    return torch.where(valid, logits, INVALID_LOGIT), valid


def anchor_boxes(sizes_hw: list[tuple[int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes (sum h * w, 4) float32 cxcywh in 0..1 of all levels, and which are valid, bool (sum h * w, 1)."""
    boxes = torch.cat([_level_boxes(size, ANCHOR_SIZE * 2.0**level) for level, size in enumerate(sizes_hw)])
    return boxes, ((boxes > ANCHOR_MARGIN) & (boxes < 1 - ANCHOR_MARGIN)).all(dim=-1, keepdim=True)


def _level_boxes(size_hw: tuple[int, int], side: float) -> torch.Tensor:
    height, width = size_hw
    y, x = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
    center = (torch.stack([x, y], dim=-1) + 0.5) / torch.tensor([width, height])
    return torch.cat([center, torch.full_like(center, side)], dim=-1).reshape(-1, 4)
