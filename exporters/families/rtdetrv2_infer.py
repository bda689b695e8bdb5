"""Every config number of an RT-DETRv2 checkpoint, from the shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vtk.errors import CheckpointError
from vtk.exporters.families.detector_infer import ENCODER_HEADS, points_per_level
from vtk.exporters.families.detector_tensors import Tensors, columns, count, rows
from vtk.exporters.modules.hybrid_encoder import HybridEncoderConfig
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
class RTDetrConfig:
    """What the tensors say. depth: of the official ResNet, None for another. Lists run over levels, finest first."""

    depth: int | None
    stem: tuple[int, int]
    blocks: tuple[int, ...]
    channels: tuple[int, ...]
    bottleneck: bool
    levels: int
    in_channels: tuple[int, ...]
    hidden: int
    encoder_ffn: int
    encoder_heads: int
    encoder_layers: int
    fusion_width: int
    bottlenecks: int
    decoder_channels: tuple[int, ...]
    dim: int
    decoder_ffn: int
    layers: int
    used: int
    heads: int
    points: tuple[int, ...]
    classes: int
    position_depth: int

    @property
    def is_m(self) -> bool:
        """Whether it is the middle size of ResNet-50."""
        return self.depth == 50 and 2 * self.fusion_width == self.hidden

    @property
    def variant(self) -> str:
        """R18, R34, R50-m, R50 or R101 of the official configs, else custom."""
        return "custom" if self.depth is None else f"R{self.depth}{'-m' if self.is_m else ''}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RTDetrConfig:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**fields)


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
    """Numbers that no shape check of the weights would question, but that the network cannot run with."""
    laws = {
        "there are 2 to 4 levels, each from a stage of the backbone": 2 <= config.levels <= min(4, len(config.blocks)),
        "the encoder width is a multiple of its heads": config.hidden % config.encoder_heads == 0,
        "the decoder width is a multiple of its heads": config.heads > 0 and config.dim % config.heads == 0,
        "the position head has 2 or 3 layers": config.position_depth in (2, 3),
    }
    broken = [law for law, holds in laws.items() if not holds]
    if broken:
        raise CheckpointError(f"The tensors contradict each other. In RT-DETRv2 {'; '.join(broken)}: {config}.")


def build_model(config: RTDetrConfig, *, input_hw: tuple[int, int], queries: int, act: str) -> RTDetrModel:
    """Random weights, eval mode. `queries` is what the tensors do not say; `act` is the decoder's activation."""
    backbone = PResNetConfig(config.stem, config.blocks, config.channels, config.bottleneck)
    encoder = HybridEncoderConfig(
        in_channels=config.in_channels,
        hidden=config.hidden,
        ffn=config.encoder_ffn,
        heads=config.encoder_heads,
        layers=config.encoder_layers,
        fusion_width=config.fusion_width,
        bottlenecks=config.bottlenecks,
    )
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
    return RTDetrModel(backbone, encoder, decoder, input_hw=input_hw).eval()
