"""Every config number of a D-FINE or DEIM checkpoint, from the shapes of its tensors and a few small buffers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from vtk.errors import CheckpointError
from vtk.exporters.modules.dfine import COARSEST_STRIDE, map_sizes
from vtk.exporters.modules.grids import ANCHOR_SIZE
from vtk.exporters.modules.hgnetv2 import HGNetV2Config, StageConfig

Tensors = Mapping[str, torch.Tensor]

# Not stored in any tensor; every official config has it.
ENCODER_HEADS = 8

# (channels after the first and last stem convolution, convolutions per block) of each HGNetV2.
_BACKBONES = {
    ((16, 16), 3): "B0",
    ((24, 32), 4): "B2",
    ((32, 48), 6): "B4",
    ((32, 64), 6): "B5",
}

# backbone, levels, encoder hidden, decoder dim, decoder layers, bottlenecks
_VARIANTS = {
    ("B0", 2, 128, 128, 3, 2): "N",
    ("B0", 3, 256, 256, 3, 1): "S",
    ("B2", 3, 256, 256, 4, 2): "M",
    ("B4", 3, 256, 256, 6, 3): "L",
    ("B5", 3, 384, 256, 6, 3): "X",
}
_OFFICIAL_EXPANSIONS = (0.34, 0.5, 1.0)


@dataclass(frozen=True)
class DFineConfig:
    """What the tensors say. Lists run over levels, finest first; `expansion` is the official name of `fusion_width`."""

    backbone: str
    stem: tuple[int, int]
    stages: tuple[StageConfig, ...]
    lab: bool
    frozen_bn: bool | None
    levels: int
    strides: tuple[int, ...]
    in_channels: tuple[int, ...]
    hidden: int
    encoder_ffn: int
    encoder_heads: int
    encoder_layers: int
    fusion_width: int
    expansion: float
    bottlenecks: int
    dim: int
    decoder_ffn: int
    layers: int
    heads: int
    points: tuple[int, ...]
    classes: int
    reg_max: int
    reg_scale: float
    up: float

    @property
    def variant(self) -> str:
        """N, S, M, L or X of the official configs, else custom."""
        key = (self.backbone, self.levels, self.hidden, self.dim, self.layers, self.bottlenecks)
        return _VARIANTS.get(key, "custom")

    def num_tokens(self, input_hw: tuple[int, int]) -> int:
        """Tokens that compete to become queries."""
        return sum(height * width for height, width in map_sizes(input_hw, self.levels))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DFineConfig:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        fields["stages"] = tuple(StageConfig(**stage) for stage in data["stages"])
        return cls(**fields)


def infer_config(tensors: Tensors) -> DFineConfig:
    """Raises CheckpointError where a tensor is missing that decides a number, or where numbers contradict."""
    stem, stages, lab = _backbone(tensors)
    levels = _count(tensors, r"encoder\.input_proj\.(\d+)\.conv\.weight")
    layers = _count(tensors, r"decoder\.decoder\.layers\.(\d+)\..*")
    points = _points(tensors)
    hidden = _rows(tensors, "encoder.input_proj.0.conv.weight")
    fusion_width = _rows(tensors, "encoder.fpn_blocks.0.cv2.1.conv.weight")
    return DFineConfig(
        backbone=_BACKBONES.get((stem, stages[0].layers), "custom"),
        stem=stem,
        stages=stages,
        lab=lab,
        frozen_bn=_frozen_backbone(tensors),
        levels=levels,
        strides=tuple(COARSEST_STRIDE >> (levels - 1 - level) for level in range(levels)),
        in_channels=tuple(_columns(tensors, f"encoder.input_proj.{i}.conv.weight") for i in range(levels)),
        hidden=hidden,
        encoder_ffn=_rows(tensors, "encoder.encoder.0.layers.0.linear1.weight"),
        encoder_heads=ENCODER_HEADS,
        encoder_layers=_count(tensors, r"encoder\.encoder\.0\.layers\.(\d+)\..*"),
        fusion_width=fusion_width,
        expansion=_expansion(fusion_width, hidden),
        bottlenecks=_count(tensors, r"encoder\.fpn_blocks\.0\.cv2\.0\.bottlenecks\.(\d+)\..*"),
        dim=_rows(tensors, "decoder.enc_output.proj.weight"),
        decoder_ffn=_rows(tensors, "decoder.decoder.layers.0.linear1.weight"),
        layers=layers,
        heads=_rows(tensors, "decoder.decoder.layers.0.cross_attn.attention_weights.weight") // sum(points),
        points=points,
        classes=_rows(tensors, "decoder.enc_score_head.weight"),
        reg_max=_rows(tensors, "decoder.dec_bbox_head.0.layers.2.weight") // 4 - 1,
        reg_scale=float(_tensor(tensors, "decoder.reg_scale").item()),
        up=float(_tensor(tensors, "decoder.up").item()),
    )


def trained_size(tensors: Tensors, config: DFineConfig) -> tuple[int, int] | None:
    """Input height and width for which `decoder.anchors` was made; None when the buffer is absent or does not tell.

    The first anchor of the coarsest level is centered at half a cell, so its logits hold that level's width and height.
    """
    if "decoder.anchors" not in tensors:
        return None
    anchors = tensors["decoder.anchors"].double().reshape(-1, 4)
    side = ANCHOR_SIZE * 2 ** (config.levels - 1)
    coarsest = anchors[(anchors[:, 2] - math.log(side / (1 - side))).abs() < 0.1]
    if not len(coarsest):
        return None
    width, height = (round(0.5 / x) for x in coarsest[0, :2].sigmoid().tolist())
    size = (height * COARSEST_STRIDE, width * COARSEST_STRIDE)
    return size if config.num_tokens(size) == len(anchors) else None


def backbone_config(config: DFineConfig) -> HGNetV2Config:
    """The part of `config` that the backbone module takes."""
    return HGNetV2Config(config.stem, config.stages, config.lab)


def _backbone(tensors: Tensors) -> tuple[tuple[int, int], tuple[StageConfig, ...], bool]:
    first, last = (_rows(tensors, f"backbone.stem.{name}.conv.weight") for name in ("stem1", "stem4"))
    stages = _count(tensors, r"backbone\.stages\.(\d+)\..*")
    widths = [last]
    configs = []
    for index in range(stages):
        configs.append(_stage(tensors, f"backbone.stages.{index}", widths[-1]))
        widths.append(configs[-1].out_channels)
    return (first, last), tuple(configs), "backbone.stem.stem1.lab.scale" in tensors


def _stage(tensors: Tensors, prefix: str, in_channels: int) -> StageConfig:
    layer = f"{prefix}.blocks.0.layers.0"
    light = f"{layer}.conv2.conv.weight" in tensors
    conv = _tensor(tensors, f"{layer}.conv2.conv.weight" if light else f"{layer}.conv.weight")
    escaped = re.escape(prefix)
    return StageConfig(
        in_channels=in_channels,
        mid_channels=conv.shape[0],
        out_channels=_rows(tensors, f"{prefix}.blocks.0.aggregation.1.conv.weight"),
        blocks=_count(tensors, rf"{escaped}\.blocks\.(\d+)\..*"),
        layers=_count(tensors, rf"{escaped}\.blocks\.0\.layers\.(\d+)\..*"),
        kernel=conv.shape[-1],
        light=light,
        downsample=f"{prefix}.downsample.conv.weight" in tensors,
    )


def _points(tensors: Tensors) -> tuple[int, ...]:
    """The buffer repeats 1/n n times for every level with n points."""
    scale = _tensor(tensors, "decoder.decoder.layers.0.cross_attn.num_points_scale").float().tolist()
    points: list[int] = []
    while sum(points) < len(scale):
        points.append(round(1 / scale[sum(points)]))
    if sum(points) != len(scale):
        raise CheckpointError(f"decoder.….cross_attn.num_points_scale holds {scale}, which fits no points per level.")
    return tuple(points)


def _frozen_backbone(tensors: Tensors) -> bool | None:
    """Frozen norms have no step counter. A file that was stripped of all counters does not tell."""
    counted = [key for key in tensors if key.endswith("num_batches_tracked")]
    return not any(key.startswith("backbone.") for key in counted) if counted else None


def _expansion(fusion_width: int, hidden: int) -> float:
    """The official config value if it gives this width, else the ratio itself."""
    official = [value for value in _OFFICIAL_EXPANSIONS if round(value * hidden // 2) == fusion_width]
    return official[0] if official else 2 * fusion_width / hidden


def _tensor(tensors: Tensors, key: str) -> torch.Tensor:
    if key not in tensors:
        raise CheckpointError(f"This looks like a D-FINE or DEIM checkpoint, but it lacks '{key}'.")
    return tensors[key]


def _rows(tensors: Tensors, key: str) -> int:
    return _tensor(tensors, key).shape[0]


def _columns(tensors: Tensors, key: str) -> int:
    return _tensor(tensors, key).shape[1]


def _count(tensors: Tensors, pattern: str) -> int:
    """How many different first groups of `pattern` there are among the names."""
    matches = (re.fullmatch(pattern, key) for key in tensors)
    count = len({match[1] for match in matches if match})
    if not count:
        raise CheckpointError(f"This looks like a D-FINE or DEIM checkpoint, but no tensor matches '{pattern}'.")
    return count
