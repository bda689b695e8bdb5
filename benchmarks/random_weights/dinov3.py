"""DINOv3 of the published sizes, under the names of its official files."""

from __future__ import annotations

import torch
from random_weights.drawing import Tensors, drawn

from vtk.exporters.modules.dino_vit import DinoViT, ViTConfig, rope_periods


def dinov3(config: ViTConfig) -> Tensors:
    """facebookresearch/dinov3: the backbone alone, key biases (where it has any) silenced by masks."""
    with torch.device("meta"):
        shapes = DinoViT(config).state_dict()
    del shapes["rope_embed.periods"]
    tensors = {name: drawn(name, tuple(value.shape)) for name, value in shapes.items()}
    tensors["rope_embed.periods"] = rope_periods(config)
    mask = torch.ones(3, config.dim)
    mask[1] = 0
    masked = range(config.depth if config.qkv_bias else 0)
    masks = {f"blocks.{index}.attn.qkv.bias_mask": mask.flatten().clone() for index in masked}
    return {**tensors, "mask_token": torch.zeros(1, config.dim), **masks}


def dinov3_l(small: bool) -> Tensors:
    dim, depth, heads = (64, 2, 4) if small else (1024, 24, 16)
    return dinov3(ViTConfig(dim, depth, heads, "mlp", 4 * dim, "gelu", 16, 4, True, 1e-5))


def dinov3_7b(small: bool) -> Tensors:
    dim, depth, heads = (64, 2, 2) if small else (4096, 40, 32)
    return dinov3(ViTConfig(dim, depth, heads, "swiglu", 2 * dim, "silu", 16, 4, False, 1e-5))
