"""Official DEIMv2 files of every size, written from the numbers of the official configs and not from the inference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.deimv2 import DEIMv2
from vtk.exporters.families.deimv2_config import DEIMv2Config, build_model
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.modules.deimv2_backbone import STAConfig
from vtk.exporters.modules.dfine import map_sizes
from vtk.exporters.modules.dino_vit import ViTConfig
from vtk.exporters.modules.hgnetv2 import HGNetV2Config, StageConfig

State = dict[str, torch.Tensor]

# in, mid and out channels of a stage, blocks, convolutions, kernel, light
HGNETS = {
    "Atto": ((16, 16), [(16, 16, 64, 1, 3, 3, 0), (64, 32, 256, 1, 3, 3, 0), (256, 64, 256, 1, 3, 3, 1)]),
    "Femto": ((16, 16), [(16, 16, 64, 1, 3, 3, 0), (64, 32, 256, 1, 3, 3, 0), (256, 64, 512, 1, 3, 5, 1)]),
    "Pico": ((16, 16), [(16, 16, 64, 1, 3, 3, 0), (64, 32, 256, 1, 3, 3, 0), (256, 64, 512, 2, 3, 5, 1)]),
    "B0": (
        (16, 16),
        [(16, 16, 64, 1, 3, 3, 0), (64, 32, 256, 1, 3, 3, 0), (256, 64, 512, 2, 3, 5, 1), (512, 128, 1024, 1, 3, 5, 1)],
    ),
    "B2": (
        (24, 32),
        [
            (32, 32, 96, 1, 4, 3, 0),
            (96, 64, 384, 1, 4, 3, 0),
            (384, 128, 768, 3, 4, 5, 1),
            (768, 256, 1536, 1, 4, 5, 1),
        ],
    ),
    "B4": (
        (32, 48),
        [
            (48, 48, 128, 1, 6, 3, 0),
            (128, 96, 512, 1, 6, 3, 0),
            (512, 192, 1024, 3, 6, 5, 1),
            (1024, 384, 2048, 1, 6, 5, 1),
        ],
    ),
    "B5": (
        (32, 64),
        [
            (64, 64, 128, 1, 6, 3, 0),
            (128, 128, 512, 2, 6, 3, 0),
            (512, 256, 1024, 5, 6, 5, 1),
            (1024, 512, 2048, 2, 6, 5, 1),
        ],
    ),
}
# dim, heads, FFN, FFN width, registers, planes, blocks whose outputs are taken
VITS = {
    "ViT-Tiny": (192, 3, "mlp", 768, 0, 16, (3, 7, 11)),
    "ViT-Tiny+": (256, 4, "mlp", 1024, 0, 16, (3, 7, 11)),
    "ViT-S": (384, 6, "mlp", 1536, 4, 32, (5, 8, 11)),
    "ViT-S+": (384, 6, "swiglu", 1536, 4, 64, (5, 8, 11)),
}
# backbone, encoder, hidden, encoder FFN, expansion, depth_mult, decoder width, decoder FFN, layers, points, reg_scale
CONFIGS: dict[str, tuple[Any, ...]] = {
    "Atto": ("Atto", "lite", 64, 0, 0.34, 0.5, 64, 160, 3, (4, 2), 4.0),
    "Femto": ("Femto", "lite", 96, 0, 0.34, 0.5, 96, 256, 3, (4, 2), 4.0),
    "Pico": ("Pico", "lite", 112, 0, 0.34, 0.5, 112, 320, 3, (4, 2), 4.0),
    "N": ("B0", "smooth_sum", 128, 512, 0.34, 0.5, 128, 512, 3, (6, 6), 4.0),
    "S": ("ViT-Tiny", "sum", 192, 512, 0.34, 0.67, 192, 512, 4, (3, 6, 3), 4.0),
    "M": ("ViT-Tiny+", "sum", 256, 512, 0.67, 1, 256, 512, 4, (3, 6, 3), 4.0),
    "L": ("ViT-S", "sum", 224, 896, 1, 1, 224, 1792, 4, (3, 6, 3), 4.0),
    "X": ("ViT-S+", "sum", 256, 1024, 1.25, 1.37, 256, 2048, 6, (3, 6, 3), 4.0),
    "HGNetV2-S": ("B0", "smooth_sum", 256, 1024, 0.5, 0.34, 256, 2048, 3, (3, 6, 3), 4.0),
    "HGNetV2-M": ("B2", "sum", 256, 1024, 1, 0.67, 256, 2048, 4, (3, 6, 3), 4.0),
    "HGNetV2-L": ("B4", "sum", 256, 1024, 1, 1, 256, 2048, 6, (3, 6, 3), 4.0),
    "HGNetV2-X": ("B5", "sum", 384, 2048, 1, 1, 256, 2048, 6, (3, 6, 3), 8.0),
}


def official_config(variant: str, classes: int = 80) -> DEIMv2Config:
    """The arithmetic of the official code over the numbers above."""
    backbone, encoder, hidden, ffn, expansion, depth, dim, rows, layers, points, reg_scale = CONFIGS[variant]
    lite = encoder == "lite"
    hgnet, sta = None, None
    if backbone in HGNETS:
        stem, stages = HGNETS[backbone]
        numbers = enumerate(stages)
        configs = tuple(StageConfig(*s[:5], s[5], light=bool(s[6]), downsample=i > 0) for i, s in numbers)
        hgnet = HGNetV2Config(stem, configs, backbone not in ("B4", "B5"))
        in_channels = tuple(stage.out_channels for stage in configs)[-1 if lite else -len(points) :]
    else:
        width, heads, kind, ffn_dim, registers, planes, after = VITS[backbone]
        tiny = registers == 0
        vit = ViTConfig(
            width, 12, heads, kind, ffn_dim, "silu" if kind == "swiglu" else "gelu", 16, registers, True,
            1e-6 if tiny else 1e-5, layer_scale=not tiny, final_norm=not tiny,
        )  # fmt: skip
        sta, in_channels = STAConfig(vit, planes, hidden, after), (hidden,) * 3
    return DEIMv2Config(
        hgnet=hgnet,
        sta=sta,
        encoder=encoder,
        levels=len(points),
        in_channels=in_channels,
        hidden=hidden,
        encoder_ffn=ffn,
        encoder_heads=0 if lite else 8,
        encoder_layers=0 if lite else 1,
        fusion_width=round(expansion * hidden // 2),
        bottlenecks=round(3 * depth),
        dim=dim,
        decoder_ffn=rows,
        gateway=not lite,
        layers=layers,
        heads=8,
        points=points,
        classes=classes,
        reg_max=32,
        reg_scale=reg_scale,
        up=0.5,
    )


OFFICIAL_NAMES = (
    (r"^backbone\.sta\.(stem|conv2)\.conv\.", r"backbone.sta.\1.0."),
    (r"^backbone\.sta\.(stem|conv2)\.norm\.", r"backbone.sta.\1.1."),
    (r"^backbone\.sta\.(conv[34])\.conv\.", r"backbone.sta.\1.1."),
    (r"^backbone\.sta\.(conv[34])\.norm\.", r"backbone.sta.\1.2."),
    (r"^backbone\.fuse\.(\d)\.conv\.", r"backbone.convs.\1."),
    (r"^backbone\.fuse\.(\d)\.norm\.", r"backbone.norms.\1."),
    (r"^encoder\.(down_sample\d)\.conv\.", r"encoder.\1.1."),
    (r"^encoder\.(down_sample\d)\.norm\.", r"encoder.\1.2."),
)


def official_name(key: str, *, tiny: bool) -> str:
    for pattern, replacement in OFFICIAL_NAMES:
        key = re.sub(pattern, replacement, key)
    return key.replace("backbone.dinov3.", "backbone.dinov3._model.") if tiny else key


def official_anchors(config: DEIMv2Config, input_hw: tuple[int, int]) -> torch.Tensor:
    """(1, L, 4) with infinity in the rows that the official code does not use, one anchor after the other."""
    rows = []
    for level, (height, width) in enumerate(map_sizes(input_hw, config.levels)):
        side = 0.05 * 2**level
        rows += [((x + 0.5) / width, (y + 0.5) / height, side, side) for y in range(height) for x in range(width)]
    boxes = torch.tensor(rows)
    unused = ((boxes <= 0.01) | (boxes >= 0.99)).any(dim=1, keepdim=True)
    return torch.where(unused, torch.inf, boxes.logit())[None]


def official_state(module: nn.Module, config: DEIMv2Config, input_hw: tuple[int, int]) -> State:
    """Everything that a released file holds: the module's own tensors and those without effect."""
    tiny = config.sta is not None and not config.sta.vit.layer_scale
    state = {official_name(key, tiny=tiny): value for key, value in module.state_dict().items()}
    up, scale = torch.tensor([config.up]), torch.tensor([int(config.reg_scale)])
    state |= {"decoder.up": up, "decoder.decoder.up": up}
    state |= {"decoder.reg_scale": scale, "decoder.decoder.reg_scale": scale}
    anchors = official_anchors(config, input_hw)
    state |= {"decoder.anchors": anchors, "decoder.valid_mask": anchors.isfinite().all(-1, keepdim=True)}
    state["decoder.denoising_class_embed.weight"] = torch.zeros(config.classes + 1, config.dim)
    last = config.layers - 1
    for key in [key for key in state if f"lqe_layers.{last}." in key or f"dec_score_head.{last}." in key]:
        for layer in range(last):
            state[key.replace(f".{last}.", f".{layer}.", 1)] = torch.zeros_like(state[key])
    if config.sta is not None and not tiny:
        state["backbone.dinov3.mask_token"] = torch.zeros(1, config.sta.vit.dim)
        for index in range(config.sta.vit.depth):
            mask = torch.ones(3, config.sta.vit.dim)
            mask[1] = 0
            state[f"backbone.dinov3.blocks.{index}.attn.qkv.bias_mask"] = mask.flatten()
    return state


def meta_state(config: DEIMv2Config, input_hw: tuple[int, int] = (640, 640)) -> State:
    """An official file of full size without its bytes: only the buffers that the inference reads are real."""
    with torch.device("meta"):
        module = build_model(config, input_hw=(64, 64), queries=9)
    state = official_state(module, config, input_hw)
    scale = torch.tensor([1 / n for n in config.points for _ in range(n)])
    return {key: scale if key.endswith("num_points_scale") else value for key, value in state.items()}


def randomize(module: nn.Module, seed: int) -> None:
    """Draw every weight and statistic so that a wrong one changes the outputs; a shared head stays shared."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point() or name.endswith(("num_points_scale", "periods")):
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim > 1:
            tensor.copy_(noise / tensor[0].numel() ** 0.5)
        else:
            tensor.copy_(noise.abs() * 0.2 + 0.8 if name.endswith(("running_var", "scale")) else 0.1 * noise + 0.5)


def as_checkpoint(tensors: Mapping[str, torch.Tensor], config: object = None, name: str = "model.pth") -> Checkpoint:
    metadata = {} if config is None else {"config": config}
    return Checkpoint(Path(name), "pth", tensors, "0" * 64, "0" * 64, "flat", ("flat",), metadata=metadata)


def spec_of(tensors: Mapping[str, torch.Tensor], config: object = None, **options: Any) -> ModelSpec:
    checkpoint, chosen = as_checkpoint(tensors, config), FamilyOptions(**options)
    layout = DEIMv2().recognize(checkpoint, chosen)
    assert layout is not None
    return DEIMv2().infer(checkpoint, layout, chosen)


@pytest.fixture(scope="session")
def files() -> SimpleNamespace:
    """The functions above."""
    functions: tuple[Callable[..., Any], ...] = (
        official_config, official_state, meta_state, randomize, as_checkpoint, spec_of,
    )  # fmt: skip
    return SimpleNamespace(**{function.__name__: function for function in functions})
