"""DINOv3 ConvNeXt (T, S, B, L) in the official, Hugging Face and timm layouts.

Source: facebookresearch/dinov3. timm's supervised ConvNeXt models share its layout but carry a classifier: they are
not this family and need --timm-name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from torch import Tensor, nn

from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Family, FamilyOptions, ModelSpec
from vtk.exporters.keymap import rename
from vtk.exporters.modules.dino_convnext import ConvNextConfig, DinoConvNext
from vtk.exporters.modules.dino_keys import axis, config_number, count_blocks, input_size, on_meta, token_outputs
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

DEFAULT_SIZE = 256
STRIDE = 32
_STAGES = range(4)

_VARIANTS: Mapping[tuple[tuple[int, ...], tuple[int, ...]], str] = {
    ((3, 3, 9, 3), (96, 192, 384, 768)): "ConvNeXt-T",
    ((3, 3, 27, 3), (96, 192, 384, 768)): "ConvNeXt-S",
    ((3, 3, 27, 3), (128, 256, 512, 1024)): "ConvNeXt-B",
    ((3, 3, 27, 3), (192, 384, 768, 1536)): "ConvNeXt-L",
}

_HF_RULES = (
    (r"^(model\.)?stages\.(\d)\.downsample_layers\.", r"downsample_layers.\2."),
    (r"^(model\.)?stages\.(\d)\.layers\.", r"stages.\2."),
    (r"\.depthwise_conv\.", ".dwconv."),
    (r"\.pointwise_conv(\d)\.", r".pwconv\1."),
    (r"\.layer_norm\.", ".norm."),
    (r"^layer_norm\.", "norm."),
)
_TIMM_RULES = (
    (r"^stem\.", "downsample_layers.0."),
    (r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1."),
    (r"^stages\.(\d)\.blocks\.", r"stages.\1."),
    (r"\.conv_dw\.", ".dwconv."),
    (r"\.mlp\.fc(\d)\.", r".pwconv\1."),
    (r"^head\.norm\.", "norm."),
)
_RULES = {"official": (), "hf": _HF_RULES, "timm": _TIMM_RULES}


class DINOv3ConvNext(Family):
    """Recognized by ConvNeXt blocks with layer scale, a final norm and no classifier."""

    name = "dinov3-convnext"
    title = "DINOv3 ConvNeXt"
    layouts = ("official", "hf", "timm")
    # The official module lists its final norm twice, as `norm` and as `norms.3`.
    unused = (r"norms\.3\..*",)
    exact = True
    builds_on_meta = True

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        names = checkpoint.tensors.keys()
        if {"downsample_layers.0.0.weight", "stages.0.0.dwconv.weight", "stages.0.0.gamma", "norm.weight"} <= names:
            return "official" if "head.weight" not in names else None
        for prefix in ("model.", ""):
            if {f"{prefix}stages.0.layers.0.depthwise_conv.weight", f"{prefix}stages.0.layers.0.gamma"} <= names:
                return "hf"
        if {
            "stem.0.weight",
            "stages.0.blocks.0.conv_dw.weight",
            "stages.0.blocks.0.gamma",
            "head.norm.weight",
        } <= names:
            return "timm" if "head.fc.weight" not in names else None
        return None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        tensors = _to_official(on_meta(checkpoint.tensors), layout)
        dims = tuple(axis(tensors, f"stages.{stage}.0.gamma", 0) for stage in _STAGES)
        depths = tuple(count_blocks(tensors, rf"stages\.{stage}\.(\d+)\.") for stage in _STAGES)
        config = ConvNextConfig(depths, dims, config_number(checkpoint, "layer_norm_eps", 1e-6))
        size = input_size(options, DEFAULT_SIZE, STRIDE)
        return ModelSpec(
            family=self.name,
            variant=_VARIANTS.get((depths, dims), "custom"),
            layout=layout,
            task="embed",
            config={
                **asdict(config),
                "grid_hw": (size[0] // STRIDE, size[1] // STRIDE),
                "pretrain_data": "lvd",
            },
            input_hw=size,
            recipe=Recipe(size, mean=IMAGENET_MEAN, std=IMAGENET_STD),
            post=PostRecipe("embed"),
            outputs=token_outputs(registers=0, depth=sum(depths)),
            fp32_islands=("layer_norm",),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Tensor]:
        return _to_official(checkpoint.tensors, spec.layout)

    def build(self, spec: ModelSpec) -> nn.Module:
        config = spec.config
        return DinoConvNext(ConvNextConfig(config["depths"], config["dims"], config["norm_eps"])).eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        return module.eval()


def _to_official(tensors: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    return {rename(key, _RULES[layout]): value for key, value in tensors.items()}
