"""Detectors of the published sizes, under the names of their official files."""

from __future__ import annotations

import re

import torch
from random_weights.drawing import Tensors
from random_weights.training import SIDE, train

from vtk.exporters.families.deimv2_config import DEIMv2Config
from vtk.exporters.families.deimv2_config import build_model as build_deimv2
from vtk.exporters.families.dfine_config import DFineConfig
from vtk.exporters.families.dfine_config import build_model as build_dfine
from vtk.exporters.families.rtdetrv2_infer import RTDetrConfig
from vtk.exporters.families.rtdetrv2_infer import build_model as build_rtdetr
from vtk.exporters.modules.deimv2_backbone import STAConfig
from vtk.exporters.modules.dino_vit import ViTConfig
from vtk.exporters.modules.hgnetv2 import StageConfig

QUERIES = 300
CLASSES = 80

# DEIMv2's own names, where the module has others
_DEIMV2_NAMES = (
    (r"^backbone\.sta\.(stem|conv2)\.conv\.", r"backbone.sta.\1.0."),
    (r"^backbone\.sta\.(stem|conv2)\.norm\.", r"backbone.sta.\1.1."),
    (r"^backbone\.sta\.(conv[34])\.conv\.", r"backbone.sta.\1.1."),
    (r"^backbone\.sta\.(conv[34])\.norm\.", r"backbone.sta.\1.2."),
    (r"^backbone\.fuse\.(\d)\.conv\.", r"backbone.convs.\1."),
    (r"^backbone\.fuse\.(\d)\.norm\.", r"backbone.norms.\1."),
    (r"^encoder\.(down_sample\d)\.conv\.", r"encoder.\1.1."),
    (r"^encoder\.(down_sample\d)\.norm\.", r"encoder.\1.2."),
)
# in, mid and out channels of the stages of HGNetV2-B5, blocks, convolutions, kernel, light
_B5 = (
    (64, 64, 128, 1, 6, 3, False),
    (128, 128, 512, 2, 6, 3, False),
    (512, 256, 1024, 5, 6, 5, True),
    (1024, 512, 2048, 2, 6, 5, True),
)


def deimv2_x(small: bool) -> Tensors:
    """The released file of X: DINOv3 S+ and its adapter; small: two decoder layers in place of six."""
    layers, last = (2, 1) if small else (6, 5)
    vit = ViTConfig(384, 12, 6, "swiglu", 1536, "silu", 16, 4, True, 1e-5)
    config = DEIMv2Config(
        hgnet=None,
        sta=STAConfig(vit, 64, 256, (5, 8, 11)),
        encoder="sum",
        levels=3,
        in_channels=(256,) * 3,
        hidden=256,
        encoder_ffn=1024,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=160,
        bottlenecks=4,
        dim=256,
        decoder_ffn=2048,
        gateway=True,
        layers=layers,
        heads=8,
        points=(3, 6, 3),
        classes=CLASSES,
        reg_max=32,
        reg_scale=4.0,
        up=0.5,
    )
    module = build_deimv2(config, input_hw=(SIDE, SIDE), queries=QUERIES)
    train(module)
    state = {named(key, _DEIMV2_NAMES): value for key, value in module.state_dict().items()}
    for key in [key for key in state if f"lqe_layers.{last}." in key or f"dec_score_head.{last}." in key]:
        state |= {key.replace(f".{last}.", f".{layer}.", 1): state[key] for layer in range(last)}
    return state | refining_scalars(config.up, config.reg_scale)


def rtdetrv2_r101(small: bool) -> Tensors:
    """lyuwenyu/RT-DETR; small: ResNet-18."""
    hidden = 256 if small else 384
    outs = (128, 256, 512) if small else (512, 1024, 2048)
    config = RTDetrConfig(
        depth=18 if small else 101,
        stem=(32, 64),
        blocks=(2, 2, 2, 2) if small else (3, 4, 23, 3),
        channels=(64, 128, 256, 512),
        bottleneck=not small,
        levels=3,
        in_channels=outs,
        hidden=hidden,
        encoder_ffn=1024 if small else 2048,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=128 if small else 384,
        bottlenecks=3,
        decoder_channels=(hidden,) * 3,
        dim=256,
        decoder_ffn=1024,
        layers=3 if small else 6,
        used=3 if small else 6,
        heads=8,
        points=(4, 4, 4),
        classes=CLASSES,
        position_depth=2,
    )
    module = build_rtdetr(config, input_hw=(SIDE, SIDE), queries=QUERIES, act="relu")
    train(module)
    return module.state_dict()


def dfine_x(small: bool) -> Tensors:
    """Peterande/D-FINE; small: two decoder layers in place of six."""
    layers = 2 if small else 6
    stages = tuple(StageConfig(*numbers, downsample=index > 0) for index, numbers in enumerate(_B5))
    config = DFineConfig(
        backbone="B5",
        stem=(32, 64),
        stages=stages,
        lab=False,
        frozen_bn=True,
        strides=(8, 16, 32),
        expansion=1.0,
        levels=3,
        in_channels=(512, 1024, 2048),
        hidden=384,
        encoder_ffn=2048,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=192,
        bottlenecks=3,
        dim=256,
        decoder_ffn=1024,
        layers=layers,
        heads=8,
        points=(3, 6, 3),
        classes=CLASSES,
        reg_max=32,
        reg_scale=8.0,
        up=0.5,
    )
    module = build_dfine(config, input_hw=(SIDE, SIDE), queries=QUERIES, act="relu")
    train(module)
    return module.state_dict() | refining_scalars(config.up, config.reg_scale)


def refining_scalars(up: float, reg_scale: float) -> Tensors:
    """Where the official files of D-FINE's line keep the numbers of their boxes."""
    pairs = {"up": torch.tensor([up]), "reg_scale": torch.tensor([reg_scale])}
    return {f"decoder.{below}{name}": value for below in ("", "decoder.") for name, value in pairs.items()}


def named(key: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key
