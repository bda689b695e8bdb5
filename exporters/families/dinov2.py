"""DINOv2 vision transformers (S, B, L, g; with and without registers) in the official, Hugging Face and timm layouts.

Source: facebookresearch/dinov2, arXiv 2304.07193 and 2309.16588 (registers). The three programs resize the learned
position table in three ways; a checkpoint is run as the program of its layout runs it, which `config` states as
`pos_interpolation`. At the native 518x518 they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec
from vtk.exporters.keymap import rename
from vtk.exporters.modules.dino_keys import (
    FP32_ISLANDS,
    activation_name,
    axis,
    config_number,
    head_count,
    hf_config,
    input_size,
    merge_qkv,
    on_meta,
    token_outputs,
    vit_shapes,
)
from vtk.exporters.modules.dino_vit import DinoEmbedder, DinoViT, PosInterpolation, ViTConfig
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

DEFAULT_SIZE = 224
CROP_FRACTION = 224 / 256  # official evaluation: resize 256, center crop 224

# (dim, depth, ffn, ffn_dim) -> name, heads
_VARIANTS = {
    (384, 12, "mlp", 1536): ("ViT-S", 6),
    (768, 12, "mlp", 3072): ("ViT-B", 12),
    (1024, 24, "mlp", 4096): ("ViT-L", 16),
    (1536, 40, "swiglu", 4096): ("ViT-g", 24),
}

_HF_RULES = (
    (r"^(dinov2|dinov2_with_registers)\.", ""),
    (r"^embeddings\.(cls_token|mask_token)$", r"\1"),
    (r"^embeddings\.register_tokens$", "storage_tokens"),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^encoder\.layer\.", "blocks."),
    # transformers 4 wrote attention.attention.query and attention.output.dense, 5 writes q_proj and o_proj
    (r"\.attention\.attention\.([qkv])(uery|ey|alue)\.", r".attn.\1."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.attention\.([qkv])_proj\.", r".attn.\1."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
    (r"\.mlp\.weights_in\.", ".mlp.w12."),
    (r"\.mlp\.weights_out\.", ".mlp.w3."),
    (r"\.mlp\.gate_proj\.", ".mlp.w1."),
    (r"\.mlp\.up_proj\.", ".mlp.w2."),
    (r"\.mlp\.down_proj\.", ".mlp.w3."),
    (r"^layernorm\.", "norm."),
)
_OFFICIAL_RULES = ((r"^register_tokens$", "storage_tokens"),)
_TIMM_RULES = ((r"^reg_token$", "storage_tokens"),)
_TIMM_SWIGLU = ((r"\.mlp\.fc1\.", ".mlp.w12."), (r"\.mlp\.fc2\.", ".mlp.w3."))


class DINOv2(Family):
    """Recognized by layer scales together with a learned position table over a square grid of 14 pixel patches."""

    name = "dinov2"
    title = "DINOv2 ViT"
    layouts = ("official", "hf", "timm")
    unused = (r"mask_token",)
    exact = True

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        tensors, names = checkpoint.tensors, checkpoint.tensors.keys()
        for prefix in ("", "dinov2.", "dinov2_with_registers."):
            if {f"{prefix}embeddings.position_embeddings", f"{prefix}encoder.layer.0.layer_scale1.lambda1"} <= names:
                return "hf"
        if not {"pos_embed", "cls_token", "patch_embed.proj.weight", "blocks.0.ls1.gamma"} <= names:
            return None
        if "mask_token" in tensors or "register_tokens" in tensors:
            return "official"
        return "timm" if _is_timm(tensors) else None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        tensors = _to_official(on_meta(checkpoint.tensors), layout)
        config, variant, choices = _infer_config(checkpoint, tensors, layout)
        size = input_size(options, DEFAULT_SIZE, config.patch)
        return ModelSpec(
            family=self.name,
            variant=variant,
            layout=layout,
            task="embed",
            config={**config.to_mapping(), "grid_hw": (size[0] // config.patch, size[1] // config.patch)},
            input_hw=size,
            recipe=Recipe(size, "center_crop", "pil_bicubic", IMAGENET_MEAN, IMAGENET_STD, crop_fraction=CROP_FRACTION),
            post=PostRecipe("embed"),
            outputs=token_outputs(config.registers, config.depth),
            choices=choices,
            fp32_islands=FP32_ISLANDS,
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Tensor]:
        return _to_official(checkpoint.tensors, spec.layout)

    def build(self, spec: ModelSpec) -> nn.Module:
        return DinoViT(ViTConfig.from_mapping(spec.config)).eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        assert isinstance(module, DinoViT)
        height, width = spec.config["grid_hw"]
        return DinoEmbedder(module, (height, width)).eval()


def _infer_config(
    checkpoint: Checkpoint, tensors: Mapping[str, Tensor], layout: str
) -> tuple[ViTConfig, str, tuple[Choice, ...]]:
    """Config and variant from tensors under official names, and the choice that the head count may need."""
    shapes, hf = vit_shapes(tensors), hf_config(checkpoint)
    rows = axis(tensors, "pos_embed", 1)
    side = _side(rows - 1)
    if side is None:
        raise CheckpointError(
            f"{checkpoint.path.name}: the position table has {rows} rows; expected 1 + a square number."
        )
    key = (shapes["dim"], shapes["depth"], shapes["ffn"], shapes["ffn_dim"])
    released, known_heads = _VARIANTS.get(key, ("custom", None))
    heads, choices = head_count(checkpoint, shapes["dim"], known_heads)
    act = "silu" if shapes["ffn"] == "swiglu" else hf.get("hidden_act", "gelu")
    config = ViTConfig(
        **shapes,
        heads=heads,
        activation=activation_name(act, source=checkpoint.path.name),
        norm_eps=config_number(checkpoint, "layer_norm_eps", 1e-6),
        pos_side=side,
        pos_interpolation=_interpolation(layout, shapes["registers"]),
    )
    return config, _variant_name(released, config), choices


def _is_timm(tensors: Mapping[str, Tensor]) -> bool:
    """timm's other transformers share these names, but DeiT III has neither register nor class position."""
    table, patches = tensors["pos_embed"].shape, tensors["patch_embed.proj.weight"].shape
    if len(table) != 3 or patches[-1:] != (14,):
        return False
    has_class_position = _side(table[1] - 1) is not None
    return has_class_position != ("reg_token" in tensors)


def _side(count: int) -> int | None:
    """Side of a square of `count` positions, or None if it is not one."""
    side = math.isqrt(max(count, 0))
    return side if side > 0 and side * side == count else None


def _variant_name(released: str, config: ViTConfig) -> str:
    if released == "custom" or config.patch != 14 or config.registers not in (0, 4):
        return "custom"
    return f"{released}/14" + ("-reg4" if config.registers else "")


def _interpolation(layout: str, registers: int) -> PosInterpolation:
    if layout == "timm" or registers:
        return "bicubic_antialias"
    return "bicubic_offset" if layout == "official" else "bicubic"


def _to_official(tensors: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    if layout == "hf":
        return _split_w12(merge_qkv({rename(key, _HF_RULES): value for key, value in tensors.items()}))
    if layout == "official":
        return _split_w12({rename(key, _OFFICIAL_RULES): value for key, value in tensors.items()})
    rules = _TIMM_RULES + (_TIMM_SWIGLU if _is_packed(tensors) else ())
    named = _split_w12({rename(key, rules): value for key, value in tensors.items()})
    if "storage_tokens" in named:
        # timm adds the class position to the class token when it converts a model with registers
        table = named["pos_embed"]
        named["pos_embed"] = torch.cat([torch.zeros_like(table[:, :1]), table], dim=1)
    return named


def _is_packed(tensors: Mapping[str, Tensor]) -> bool:
    """timm's fc1 holds gate and value of a SwiGLU: it has twice the rows that fc2 has columns."""
    return axis(tensors, "blocks.0.mlp.fc1.weight", 0) == 2 * axis(tensors, "blocks.0.mlp.fc2.weight", 1)


def _split_w12(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The packed SwiGLU input projection as gate (w1) and value (w2)."""
    split: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if ".mlp.w12." in key:
            if axis(tensors, key, 0) % 2:
                raise CheckpointError(f"The packed projection {key} has an odd number of rows.")
            split[key.replace(".w12.", ".w1.")], split[key.replace(".w12.", ".w2.")] = value.chunk(2)
        else:
            split[key] = value
    return split
