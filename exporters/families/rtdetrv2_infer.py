"""Every config number of an RT-DETRv2 checkpoint, from the shapes of its tensors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vtk.exporters.families.detector_config import DetectorConfig, check_laws
from vtk.exporters.families.detector_infer import ENCODER_HEADS, points_per_level
from vtk.exporters.families.detector_tensors import Tensors, columns, count, rows
from vtk.exporters.modules.presnet import PResNetConfig
from vtk.exporters.modules.rtdetrv2 import RTDetrDecoderConfig, RTDetrModel

# Blocks per stage, and whether they are bottlenecks.
_DEPTHS: dict[tuple[tuple[int, ...], bool], int] = {
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
}
_OFFICIAL_POINTS = 4
# The official R50-m has six layers and stops after the third; a half as wide fusion tells it from R50.
_M_LAYERS, _M_USED = 6, 3


@dataclass(frozen=True)
class RTDetrConfig(DetectorConfig):
    """depth: of the official ResNet, None for another. used: how many of the decoder's layers run."""

    depth: int | None
    stem: tuple[int, int]
    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    bottleneck: bool
    decoder_channels: tuple[int, ...]
    used: int
    position_depth: int

    @property
    def is_m(self) -> bool:
        """Whether it is the middle size of ResNet-50."""
        return self.depth == 50 and 2 * self.fusion_width == self.hidden

    @property
    def variant(self) -> str:
        """R18, R34, R50-m, R50 or R101 of the official configs, else custom."""
        return "custom" if self.depth is None else f"R{self.depth}{'-m' if self.is_m else ''}"


def infer_config(tensors: Tensors, *, official: bool) -> RTDetrConfig:
    """official: the file is of the repository itself, whose R50-m does not use its last layers.

    Raises CheckpointError where a tensor is missing that decides a number, or where numbers contradict."""
    backbone = _backbone(tensors)
    levels = count(tensors, r"encoder\.input_proj\.(\d+)\.conv\.weight")
    points = points_per_level(tensors, levels, (_OFFICIAL_POINTS,) * levels)
    hidden = rows(tensors, "encoder.input_proj.0.conv.weight")
    layers = count(tensors, r"decoder\.decoder\.layers\.(\d+)\..*")
    depth = _DEPTHS.get((backbone.blocks, backbone.bottleneck))
    fusion_width = rows(tensors, "encoder.fpn_blocks.0.conv1.conv.weight")
    stops_early = official and depth == 50 and 2 * fusion_width == hidden and layers == _M_LAYERS
    config = RTDetrConfig(
        depth=depth,
        stem=backbone.stem,
        blocks=backbone.blocks,
        channels=backbone.channels,
        bottleneck=backbone.bottleneck,
        levels=levels,
        in_channels=tuple(columns(tensors, f"encoder.input_proj.{level}.conv.weight") for level in range(levels)),
        hidden=hidden,
        encoder_ffn=rows(tensors, "encoder.encoder.0.layers.0.linear1.weight"),
        encoder_heads=ENCODER_HEADS,
        encoder_layers=count(tensors, r"encoder\.encoder\.0\.layers\.(\d+)\..*"),
        fusion_width=fusion_width,
        bottlenecks=count(tensors, r"encoder\.fpn_blocks\.0\.bottlenecks\.(\d+)\..*"),
        decoder_channels=tuple(columns(tensors, f"decoder.input_proj.{level}.conv.weight") for level in range(levels)),
        dim=rows(tensors, "decoder.enc_output.proj.weight"),
        decoder_ffn=rows(tensors, "decoder.decoder.layers.0.linear1.weight"),
        layers=layers,
        used=_M_USED if stops_early else layers,
        heads=rows(tensors, "decoder.decoder.layers.0.cross_attn.attention_weights.weight") // sum(points),
        points=points,
        classes=rows(tensors, "decoder.enc_score_head.weight"),
        position_depth=count(tensors, r"decoder\.query_pos_head\.layers\.(\d+)\.weight"),
    )
    _check(config)
    return config


def _backbone(tensors: Tensors) -> PResNetConfig:
    stages = range(count(tensors, r"backbone\.res_layers\.(\d+)\..*"))
    prefixes = [f"backbone.res_layers.{stage}.blocks" for stage in stages]
    return PResNetConfig(
        stem=(rows(tensors, "backbone.conv1.conv1_1.conv.weight"), rows(tensors, "backbone.conv1.conv1_3.conv.weight")),
        blocks=tuple(count(tensors, rf"{re.escape(prefix)}\.(\d+)\..*") for prefix in prefixes),
        channels=tuple(rows(tensors, f"{prefix}.0.branch2a.conv.weight") for prefix in prefixes),
        bottleneck=f"{prefixes[0]}.0.branch2c.conv.weight" in tensors,
    )


def _check(config: RTDetrConfig) -> None:
    laws = {
        "there are 2 to 4 levels, each from a stage of the backbone": 2 <= config.levels <= min(4, len(config.blocks)),
        "the position head has 2 or 3 layers": config.position_depth in (2, 3),
    }
    check_laws("RT-DETRv2", config, laws | config.laws())


def build_model(config: RTDetrConfig, *, input_hw: tuple[int, int], queries: int, act: str) -> RTDetrModel:
    """Random weights, eval mode. `queries` is what the tensors do not say; `act` is the decoder's activation."""
    backbone = PResNetConfig(config.stem, config.blocks, config.channels, config.bottleneck)
    decoder = RTDetrDecoderConfig(
        in_channels=config.decoder_channels,
        dim=config.dim,
        ffn=config.decoder_ffn,
        layers=config.layers,
        used=config.used,
        heads=config.heads,
        points=config.points,
        classes=config.classes,
        queries=queries,
        act=act,
        position_depth=config.position_depth,
    )
    return RTDetrModel(backbone, config.hybrid_encoder(), decoder, input_hw=input_hw).eval()
