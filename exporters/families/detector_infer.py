"""What the detectors of the D-FINE line have in common: backbone, sampling points and input size, from tensors."""

from __future__ import annotations

import math
import re

from vtk.errors import CheckpointError
from vtk.exporters.families.detector_tensors import Tensors, count, matrix, rows, tensor
from vtk.exporters.modules.dfine import COARSEST_STRIDE, map_sizes
from vtk.exporters.modules.grids import ANCHOR_SIZE
from vtk.exporters.modules.hgnetv2 import HGNetV2Config, StageConfig

# Not stored in any tensor; every official config has it.
ENCODER_HEADS = 8

POINTS_KEY = "decoder.decoder.layers.0.cross_attn.num_points_scale"
POINTS_TOLERANCE = 0.01


def hgnet(tensors: Tensors) -> HGNetV2Config:
    """The HGNetV2 under `backbone.`."""
    first, last = (rows(tensors, f"backbone.stem.{name}.conv.weight") for name in ("stem1", "stem4"))
    widths = [last]
    stages = []
    for index in range(count(tensors, r"backbone\.stages\.(\d+)\..*")):
        stages.append(_stage(tensors, f"backbone.stages.{index}", widths[-1]))
        widths.append(stages[-1].out_channels)
    return HGNetV2Config((first, last), tuple(stages), "backbone.stem.stem1.lab.scale" in tensors)


def _stage(tensors: Tensors, prefix: str, in_channels: int) -> StageConfig:
    layer = f"{prefix}.blocks.0.layers.0"
    light = f"{layer}.conv2.conv.weight" in tensors
    conv = matrix(tensors, f"{layer}.conv2.conv.weight" if light else f"{layer}.conv.weight")
    escaped = re.escape(prefix)
    return StageConfig(
        in_channels=in_channels,
        mid_channels=conv.shape[0],
        out_channels=rows(tensors, f"{prefix}.blocks.0.aggregation.1.conv.weight"),
        blocks=count(tensors, rf"{escaped}\.blocks\.(\d+)\..*"),
        layers=count(tensors, rf"{escaped}\.blocks\.0\.layers\.(\d+)\..*"),
        kernel=conv.shape[-1],
        light=light,
        downsample=f"{prefix}.downsample.conv.weight" in tensors,
    )


def stored_points(tensors: Tensors) -> tuple[int, ...] | None:
    """Points per level: the buffer repeats 1/n n times for every level with n points. None where it does not."""
    scale = tensor(tensors, POINTS_KEY).float().flatten().tolist()
    points: list[int] = []
    while sum(points) < len(scale):
        start = sum(points)
        repeats = round(1 / scale[start]) if 0 < scale[start] <= 1 else 0
        run = scale[start : start + repeats]
        if not run or len(run) < repeats or any(abs(value * repeats - 1) > POINTS_TOLERANCE for value in run):
            return None
        points.append(repeats)
    return tuple(points) or None


def points_per_level(tensors: Tensors, levels: int, official: tuple[int, ...]) -> tuple[int, ...]:
    """`official` where the buffer does not tell. Raises CheckpointError where neither fits the shapes."""
    points = stored_points(tensors) or official
    if sum(points) != tensor(tensors, POINTS_KEY).numel() or len(points) != levels:
        raise CheckpointError(f"'{POINTS_KEY}' fits no number of points for each of {levels} levels.")
    return points


def trained_size(tensors: Tensors, levels: int) -> tuple[int, int] | None:
    """Input height and width for which `decoder.anchors` was made; None when the buffer is absent or does not tell.

    The first anchor of the coarsest level is centered at half a cell, so its logits hold that level's width and height.
    """
    stored = tensors.get("decoder.anchors")
    if stored is None or stored.shape[-1:] != (4,):
        return None
    anchors = stored.double().reshape(-1, 4)
    side = ANCHOR_SIZE * 2 ** (levels - 1)
    coarsest = anchors[(anchors[:, 2] - math.log(side / (1 - side))).abs() < 0.1]
    centers = coarsest[:1, :2].sigmoid().flatten().tolist()
    if not centers or not all(0 < x < 1 for x in centers):
        return None
    width, height = (round(0.5 / x) for x in centers)
    size = (height * COARSEST_STRIDE, width * COARSEST_STRIDE)
    return size if num_tokens(size, levels) == len(anchors) else None


def num_tokens(input_hw: tuple[int, int], levels: int) -> int:
    """Tokens that compete to become queries."""
    return sum(height * width for height, width in map_sizes(input_hw, levels))
