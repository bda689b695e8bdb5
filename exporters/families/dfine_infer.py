"""Every config number of a D-FINE or DEIM checkpoint, from the shapes of its tensors and a few small buffers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch

from vtk.errors import CheckpointError
from vtk.exporters.families.dfine_config import DFineConfig
from vtk.exporters.modules.dfine import COARSEST_STRIDE
from vtk.exporters.modules.grids import ANCHOR_SIZE
from vtk.exporters.modules.hgnetv2 import StageConfig

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

POINTS_KEY = "decoder.decoder.layers.0.cross_attn.num_points_scale"
POINTS_TOLERANCE = 0.01
OFFICIAL_POINTS = {2: (6, 6), 3: (3, 6, 3)}

_OFFICIAL_EXPANSIONS = (0.34, 0.5, 1.0)


def infer_config(tensors: Tensors) -> DFineConfig:
    """Raises CheckpointError where a tensor is missing that decides a number, or where numbers contradict."""
    stem, stages, lab = _backbone(tensors)
    levels = _count(tensors, r"encoder\.input_proj\.(\d+)\.conv\.weight")
    layers = _count(tensors, r"decoder\.decoder\.layers\.(\d+)\..*")
    points = _points(tensors, levels)
    hidden = _rows(tensors, "encoder.input_proj.0.conv.weight")
    fusion_width = _rows(tensors, "encoder.fpn_blocks.0.cv2.1.conv.weight")
    config = DFineConfig(
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
        reg_scale=_shared_number(tensors, "reg_scale"),
        up=_shared_number(tensors, "up"),
    )
    _check(config)
    return config


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
    conv = _matrix(tensors, f"{layer}.conv2.conv.weight" if light else f"{layer}.conv.weight")
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


def stored_points(tensors: Tensors) -> tuple[int, ...] | None:
    """Points per level: the buffer repeats 1/n n times for every level with n points. None where it does not."""
    scale = _tensor(tensors, POINTS_KEY).float().flatten().tolist()
    points: list[int] = []
    while sum(points) < len(scale):
        start = sum(points)
        count = round(1 / scale[start]) if 0 < scale[start] <= 1 else 0
        run = scale[start : start + count]
        if not run or len(run) < count or any(abs(value * count - 1) > POINTS_TOLERANCE for value in run):
            return None
        points.append(count)
    return tuple(points) or None


def _points(tensors: Tensors, levels: int) -> tuple[int, ...]:
    points = stored_points(tensors) or OFFICIAL_POINTS.get(levels, ())
    total = _tensor(tensors, POINTS_KEY).numel()
    if sum(points) != total or len(points) != levels:
        raise CheckpointError(f"'{POINTS_KEY}' fits no number of points for each of {levels} levels.")
    return points


def _frozen_backbone(tensors: Tensors) -> bool | None:
    """Frozen norms have no step counter. A file that was stripped of all counters does not tell."""
    counted = [key for key in tensors if key.endswith("num_batches_tracked")]
    return not any(key.startswith("backbone.") for key in counted) if counted else None


def _expansion(fusion_width: int, hidden: int) -> float:
    """The official config value if it gives this width, else the ratio itself."""
    official = [value for value in _OFFICIAL_EXPANSIONS if round(value * hidden // 2) == fusion_width]
    return official[0] if official else 2 * fusion_width / hidden


def _check(config: DFineConfig) -> None:
    """Numbers that no shape check of the weights would question, but that the network cannot run with."""
    laws = {
        "there are 2 to 4 levels, each from a stage of the backbone": 2 <= config.levels <= min(4, len(config.stages)),
        "the encoder width is a multiple of its heads": config.hidden % config.encoder_heads == 0,
        "the decoder width is a multiple of its heads": config.heads > 0 and config.dim % config.heads == 0,
        "the number of bins is odd and at least 5": config.reg_max >= 4 and config.reg_max % 2 == 0,
        "up and reg_scale are positive": config.up > 0 and config.reg_scale > 0,
    }
    broken = [law for law, holds in laws.items() if not holds]
    if broken:
        raise CheckpointError(f"The tensors contradict each other. In D-FINE and DEIM {'; '.join(broken)}: {config}.")


def _tensor(tensors: Tensors, key: str) -> torch.Tensor:
    if key not in tensors:
        raise CheckpointError(f"This looks like a D-FINE or DEIM checkpoint, but it lacks '{key}'.")
    return tensors[key]


def _shared_number(tensors: Tensors, name: str) -> float:
    """One parameter stored under two names. The official loader copies the inner one last, so that it wins."""
    inner = f"decoder.decoder.{name}"
    key = inner if inner in tensors else f"decoder.{name}"
    tensor = _tensor(tensors, key)
    if tensor.numel() != 1:
        raise CheckpointError(f"'{key}' must hold one number, its shape is {tuple(tensor.shape)}.")
    return float(tensor.item())


def _rows(tensors: Tensors, key: str) -> int:
    return _matrix(tensors, key).shape[0]


def _columns(tensors: Tensors, key: str) -> int:
    return _matrix(tensors, key).shape[1]


def _matrix(tensors: Tensors, key: str) -> torch.Tensor:
    tensor = _tensor(tensors, key)
    if tensor.ndim < 2:
        raise CheckpointError(f"'{key}' must be a weight matrix or kernel, its shape is {tuple(tensor.shape)}.")
    return tensor


def _count(tensors: Tensors, pattern: str) -> int:
    """How many different first groups of `pattern` there are among the names."""
    matches = (re.fullmatch(pattern, key) for key in tensors)
    count = len({match[1] for match in matches if match})
    if not count:
        raise CheckpointError(f"This looks like a D-FINE or DEIM checkpoint, but no tensor matches '{pattern}'.")
    return count
