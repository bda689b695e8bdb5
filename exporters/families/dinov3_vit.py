"""DINOv3 vision transformers (S to 7B) in the official, Hugging Face and timm layouts.

Source: facebookresearch/dinov3 and arXiv 2508.10104. timm's own pooled output for these models averages the patches;
here as in the official code the image vector is the class token. Its transform is bicubic where the official one is
bilinear; who wants timm's behavior names the model with --timm-name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.checkpoint_head import HEAD
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec, OutputSpec
from vtk.exporters.keymap import rename
from vtk.exporters.modules.dino_head import DinoClassifier, DinoViTWithHead
from vtk.exporters.modules.dino_keys import (
    FP32_ISLANDS,
    activation_name,
    apply_bias_masks,
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
from vtk.exporters.modules.dino_vit import DinoEmbedder, DinoViT, ViTConfig, rope_periods
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

SAT_MEAN, SAT_STD = (0.430, 0.411, 0.296), (0.213, 0.156, 0.143)
DEFAULT_SIZE = 256  # the size of the official evaluation; transformers' processor takes 224

# (dim, depth, ffn, ffn_dim) -> name, heads
_VARIANTS = {
    (384, 12, "mlp", 1536): ("ViT-S/16", 6),
    (384, 12, "swiglu", 1536): ("ViT-S+/16", 6),
    (768, 12, "mlp", 3072): ("ViT-B/16", 12),
    (1024, 24, "mlp", 4096): ("ViT-L/16", 16),
    (1024, 24, "swiglu", 4096): ("ViT-L+/16", 16),
    (1280, 32, "swiglu", 5120): ("ViT-H+/16", 20),
    (4096, 40, "swiglu", 8192): ("ViT-7B/16", 32),
}
_ON_BOTH_DATASETS = ("ViT-L/16", "ViT-7B/16", "custom")
# Hashes in the names of the released files, the only trace of the pretraining data in a 7B file.
_FILE_HASHES = {"eadcf0ff": "sat", "a6675841": "sat", "a955f4ea": "lvd", "8aa4cbdd": "lvd"}

_HF_RULES = (
    (r"^embeddings\.(cls_token|mask_token)$", r"\1"),
    (r"^embeddings\.register_tokens$", "storage_tokens"),
    (r"^embeddings\.patch_embeddings\.", "patch_embed.proj."),
    (r"^(model\.)?layer\.(\d+)\.", r"blocks.\2."),
    (r"\.attention\.([qkv])_proj\.", r".attn.\1."),
    (r"\.attention\.o_proj\.", ".attn.proj."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
)
_HF_MLP = ((r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2."))
_HF_SWIGLU = (
    (r"\.mlp\.gate_proj\.", ".mlp.w1."),
    (r"\.mlp\.up_proj\.", ".mlp.w2."),
    (r"\.mlp\.down_proj\.", ".mlp.w3."),
)
_TIMM_RULES = (
    (r"^reg_token$", "storage_tokens"),
    (r"\.gamma_(\d)$", r".ls\1.gamma"),
    (r"\.attn\.([qv])_bias$", r".attn.\1.bias"),
)
_TIMM_SWIGLU = (
    (r"\.mlp\.fc1_g\.", ".mlp.w1."),
    (r"\.mlp\.fc1_x\.", ".mlp.w2."),
    (r"\.mlp\.fc2\.", ".mlp.w3."),
)


class DINOv3ViT(Family):
    """Recognized by RoPE periods or, in the other layouts, register tokens without learned positions."""

    name = "dinov3-vit"
    title = "DINOv3 ViT"
    layouts = ("official", "hf", "timm")
    ignorable = (r"rope_embed\.periods",)
    # local_cls_norm acts on local crops in training only.
    unused = (r"mask_token", r"local_cls_norm\..*")
    exact = True
    builds_on_meta = True
    reads = ("pretrain_data", "class_names", "head")

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        names = _backbone(checkpoint.tensors).keys()
        if "patch_embed.proj.weight" in names and "rope_embed.periods" in names and "blocks.0.ls1.gamma" in names:
            return "official"
        if "embeddings.register_tokens" in names and "embeddings.position_embeddings" not in names:
            return "hf"
        if {"reg_token", "blocks.0.gamma_1", "blocks.0.attn.qkv.weight"} <= names and "pos_embed" not in names:
            return "timm"
        return None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        tensors = _to_official(on_meta(checkpoint.tensors), layout)
        config, variant, head_choice = _infer_config(checkpoint, tensors)
        data, data_choice = _pretrain_data(checkpoint, variant, layout, options)
        size = input_size(options, DEFAULT_SIZE, config.patch)
        mean, std = (SAT_MEAN, SAT_STD) if data == "sat" else (IMAGENET_MEAN, IMAGENET_STD)
        head = _head_shape(tensors, config.dim)
        classes, names = _classes(head, options)
        return ModelSpec(
            family=self.name,
            variant=variant,
            layout=layout,
            task="classify" if head else "embed",
            config={
                **config.to_mapping(),
                "grid_hw": (size[0] // config.patch, size[1] // config.patch),
                "key_bias_mask": any(name.endswith(".bias_mask") for name in tensors),
                "pretrain_data": data,
                "head": head,
            },
            input_hw=size,
            recipe=Recipe(size, mean=mean, std=std),
            post=PostRecipe("classify" if head else "embed"),
            outputs=(OutputSpec("logits", "logits", 1e-3),) if head else token_outputs(config.registers, config.depth),
            num_classes=classes,
            class_names=names,
            choices=head_choice + data_choice,
            fp32_islands=FP32_ISLANDS,
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Tensor]:
        tensors = apply_bias_masks(_to_official(checkpoint.tensors, spec.layout), checkpoint.path.name)
        return {"rope_embed.periods": rope_periods(ViTConfig.from_mapping(spec.config)), **tensors}

    def build(self, spec: ModelSpec) -> nn.Module:
        config, head = ViTConfig.from_mapping(spec.config), spec.config["head"]
        if head is None:
            return DinoViT(config).eval()
        classes, features = head
        return DinoViTWithHead(config, features=features, classes=classes).eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        assert isinstance(module, DinoViT)
        height, width = spec.config["grid_hw"]
        if isinstance(module, DinoViTWithHead):
            return DinoClassifier(module, (height, width)).eval()
        return DinoEmbedder(module, (height, width)).eval()


def _infer_config(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> tuple[ViTConfig, str, tuple[Choice, ...]]:
    """Config and variant from tensors under official names, and the choice that the head count may need."""
    shapes, hf = vit_shapes(tensors), hf_config(checkpoint)
    key = (shapes["dim"], shapes["depth"], shapes["ffn"], shapes["ffn_dim"])
    variant, known_heads = _VARIANTS.get(key, ("custom", None))
    if "rope_embed.periods" in tensors:
        known_heads = shapes["dim"] // (4 * max(tensors["rope_embed.periods"].numel(), 1))
    heads, choices = head_count(checkpoint, shapes["dim"], known_heads)
    if (shapes["dim"] // heads) % 4:
        raise CheckpointError(f"{checkpoint.path.name}: {heads} heads leave no multiple of 4 for RoPE.")
    default_act = "silu" if shapes["ffn"] == "swiglu" else "gelu"
    config = ViTConfig(
        **shapes,
        heads=heads,
        activation=activation_name(hf.get("hidden_act", default_act), source=checkpoint.path.name),
        norm_eps=config_number(checkpoint, "layer_norm_eps", 1e-5),
        rope_base=config_number(checkpoint, "rope_theta", 100.0),
    )
    return config, variant, choices


def _head_shape(tensors: Mapping[str, Tensor], dim: int) -> tuple[int, int] | None:
    """Classes and features of the linear head, None where there is none. Raises CheckpointError for another input."""
    if f"{HEAD}weight" not in tensors:
        return None
    classes, features = (axis(tensors, f"{HEAD}weight", index) for index in (0, 1))
    if features not in (dim, 2 * dim):
        raise CheckpointError(
            f"The linear head takes {features} features, but this backbone gives {dim} (class token) or {2 * dim} "
            "(with the mean of the patches).",
            hint="A head on the class tokens of several blocks is not supported, nor one of another backbone.",
        )
    return classes, features


def _classes(head: tuple[int, int] | None, options: FamilyOptions) -> tuple[int | None, tuple[str, ...] | None]:
    names = options.class_names
    if head is None and names is not None:
        raise UsageError("--labels needs a classifier, and this DINOv3 has none.", hint="Pass its file with --head.")
    if head is None:
        return None, None
    if names is not None and len(names) != head[0]:
        raise UsageError(f"--labels has {len(names)} names, but the head has {head[0]} classes.")
    return head[0], names


def _backbone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefix that the official classifier gives its backbone beside `linear_head`."""
    if f"{HEAD}weight" not in tensors:
        return dict(tensors)
    return {name.removeprefix("backbone."): value for name, value in tensors.items()}


def _is_no_registers(key: str, value: Tensor) -> bool:
    """transformers stores zero registers as an empty (1, 0, dim) tensor."""
    return key == "embeddings.register_tokens" and value.ndim == 3 and value.shape[:2] == (1, 0)


def _to_official(tensors: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    tensors = _backbone(tensors)
    if layout == "official":
        return tensors
    if layout == "hf":
        tensors = {key: value for key, value in tensors.items() if not _is_no_registers(key, value)}
        rules = _HF_RULES + (_HF_SWIGLU if any(".mlp.gate_proj." in key for key in tensors) else _HF_MLP)
    else:
        rules = _TIMM_RULES + (_TIMM_SWIGLU if any(".mlp.fc1_g." in key for key in tensors) else ())
    return merge_qkv({rename(key, rules): value for key, value in tensors.items()})


def _pretrain_data(
    checkpoint: Checkpoint, variant: str, layout: str, options: FamilyOptions
) -> tuple[str, tuple[Choice, ...]]:
    """Which images the model was trained on (web: lvd, satellite: sat); it sets the normalization."""
    file_hash = re.search("|".join(_FILE_HASHES), checkpoint.path.name)
    data: str
    if options.pretrain_data is not None:
        data, reason, assumed = options.pretrain_data, "decided by --pretrain-data", False
    elif file_hash:
        data, reason, assumed = _FILE_HASHES[file_hash.group()], f"file name holds {file_hash.group()}", False
    elif variant == "ViT-L/16" and layout == "official":
        data = "sat" if "local_cls_norm.weight" in checkpoint.tensors else "lvd"
        reason, assumed = "of the ViT-L files only the satellite one has local_cls_norm", False
    elif variant in _ON_BOTH_DATASETS:
        data, assumed = "lvd", True
        reason = "the tensors do not tell web (lvd) from satellite (sat) training, and their normalization differs"
    else:
        return "lvd", ()
    return data, (Choice("pretraining data", data, "--pretrain-data", ("lvd", "sat"), reason, assumed),)
