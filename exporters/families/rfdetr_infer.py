"""Every config number of an RF-DETR checkpoint: from shapes, from what lies beside them, or as published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vtk.errors import CheckpointError
from vtk.exporters.families.detector_config import check_laws, with_tuples
from vtk.exporters.families.detector_tensors import Tensors, columns, count, rows, tensor
from vtk.exporters.families.rfdetr_facts import RFDetrFacts
from vtk.exporters.modules.dino_keys import vit_shapes
from vtk.exporters.modules.dino_vit import ViTConfig
from vtk.exporters.modules.rfdetr import RFDetrDecoderConfig, RFDetrModel
from vtk.exporters.modules.rfdetr_backbone import ProjectorConfig
from vtk.exporters.modules.rtdetrv2 import RTDetrLayerConfig

VIT_EPS = 1e-6
OFFICIAL_EPS = 1e-6
_HEAD_DIMS = {"vit": 64, "self": 32, "cross": 16}
# Windows per side, and the blocks that give a map, by patch size; the same in all published detectors.
_BY_PATCH = {14: (4, (2, 5, 8, 11)), 16: (2, (3, 6, 9, 12))}
# Backbone width, patch, side of the position table, decoder layers, scales -> name and input size
_PUBLISHED: dict[tuple[int, int, int, int, tuple[float, ...]], tuple[str, int]] = {
    (384, 16, 24, 2, (1.0,)): ("nano", 384),
    (384, 16, 32, 3, (1.0,)): ("small", 512),
    (384, 16, 36, 4, (1.0,)): ("medium", 576),
    (384, 16, 44, 4, (1.0,)): ("large", 704),
    (384, 14, 37, 3, (1.0,)): ("base", 560),
    (768, 14, 37, 3, (2.0, 0.5)): ("large (2025)", 560),
}


@dataclass(frozen=True)
class RFDetrConfig:
    """One RF-DETR. after: see `WindowedViT`.

    projector_eps, skip_border: in these two the official code and transformers differ.
    """

    vit_dim: int
    vit_depth: int
    vit_heads: int
    vit_ffn: int
    patch: int
    position_side: int
    windows: int
    after: tuple[int, ...]
    scales: tuple[float, ...]
    projector_width: int
    projector_blocks: int
    projector_eps: float
    dim: int
    ffn: int
    layers: int
    self_heads: int
    cross_heads: int
    points: int
    classes: int
    queries: int
    skip_border: bool

    @property
    def published(self) -> tuple[str, int] | None:
        """Name and input size of the published model of these shapes."""
        return _PUBLISHED.get((self.vit_dim, self.patch, self.position_side, self.layers, self.scales))

    @property
    def multiple(self) -> int:
        """What the side of the input is a multiple of."""
        return self.patch * self.windows

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RFDetrConfig:
        return cls(**with_tuples(data))


def infer_config(tensors: Tensors, facts: RFDetrFacts) -> RFDetrConfig:
    """tensors: under the module's names. Raises CheckpointError where they do not tell or contradict."""
    vit = vit_shapes({name.removeprefix("vit."): value for name, value in tensors.items() if name.startswith("vit.")})
    windows, after = _windows(vit["patch"], facts)
    scales = _scales(tensors)
    dim = rows(tensors, "enc_output.weight")
    cross_heads = facts.cross_heads or max(dim // _HEAD_DIMS["cross"], 1)
    sampled = rows(tensors, "decoder.layers.0.cross_attn.attention_weights.weight")
    config = RFDetrConfig(
        vit_dim=vit["dim"],
        vit_depth=vit["depth"],
        vit_heads=facts.vit_heads or max(vit["dim"] // _HEAD_DIMS["vit"], 1),
        vit_ffn=vit["ffn_dim"],
        patch=vit["patch"],
        position_side=math.isqrt(max(columns(tensors, "vit.pos_embed") - 1, 0)),
        windows=windows,
        after=after,
        scales=scales,
        projector_width=rows(tensors, "projector.stages.0.0.cv1.conv.weight") // 2,
        projector_blocks=count(tensors, r"projector\.stages\.0\.0\.m\.(\d+)\..*"),
        projector_eps=OFFICIAL_EPS if facts.projector_eps is None else facts.projector_eps,
        dim=dim,
        ffn=rows(tensors, "decoder.layers.0.linear1.weight"),
        layers=count(tensors, r"decoder\.layers\.(\d+)\..*"),
        self_heads=facts.self_heads or max(dim // _HEAD_DIMS["self"], 1),
        cross_heads=cross_heads,
        points=sampled // (cross_heads * len(scales)),
        classes=rows(tensors, "class_embed.weight"),
        queries=rows(tensors, "refpoint_embed"),
        skip_border=facts.skip_border,
    )
    _check(config, tensors)
    return config


def _windows(patch: int, facts: RFDetrFacts) -> tuple[int, tuple[int, ...]]:
    if facts.windows is not None and facts.after is not None:
        return facts.windows, facts.after
    if patch not in _BY_PATCH:
        raise CheckpointError(
            f"No published RF-DETR detector has patches of {patch}, so its windows and maps are not known.",
            hint="Give the folder with the config.json that transformers writes, or the .pth with its `args`.",
        )
    windows, after = _BY_PATCH[patch]
    return facts.windows or windows, facts.after or after


def _scales(tensors: Tensors) -> tuple[float, ...]:
    """Of each level, by what brings the maps to its size: a transposed convolution, a strided one, or nothing."""
    levels = range(count(tensors, r"projector\.stages\.(\d+)\..*"))
    stems = [f"projector.stages_sampling.{level}.0.0" for level in levels]
    return tuple(
        2.0 if f"{stem}.weight" in tensors else 0.5 if f"{stem}.conv.weight" in tensors else 1.0 for stem in stems
    )


def _check(config: RFDetrConfig, tensors: Tensors) -> None:
    joined = columns(tensors, "projector.stages.0.0.cv1.conv.weight")
    per_map = config.vit_dim // 2 if config.scales[0] == 2 else config.vit_dim
    sampled = rows(tensors, "decoder.layers.0.cross_attn.attention_weights.weight")
    positions = tensor(tensors, "vit.pos_embed").shape[1]
    laws = {
        "the position table is square": positions == config.position_side**2 + 1 and config.position_side > 0,
        "the backbone's width is a multiple of its heads": config.vit_dim % config.vit_heads == 0,
        "maps come from blocks of the backbone, in order": _rising(config.after, upto=config.vit_depth),
        f"the projector joins {len(config.after)} maps": joined == per_map * len(config.after),
        "the decoder's width is a multiple of its heads and of 4": config.dim % 4 == 0
        and config.dim % config.self_heads == config.dim % config.cross_heads == 0,
        "all heads have as many points": config.points > 0
        and config.points * config.cross_heads * len(config.scales) == sampled,
    }
    check_laws("RF-DETR", config, laws)


def _rising(numbers: tuple[int, ...], *, upto: int) -> bool:
    return bool(numbers) and list(numbers) == sorted(set(numbers)) and numbers[0] > 0 and numbers[-1] <= upto


def build_model(config: RFDetrConfig, *, grid: int) -> RFDetrModel:
    """Random weights, eval mode, for an input of grid x grid patches."""
    vit = ViTConfig(
        dim=config.vit_dim,
        depth=config.vit_depth,
        heads=config.vit_heads,
        ffn="mlp",
        ffn_dim=config.vit_ffn,
        activation="gelu",
        patch=config.patch,
        registers=0,
        qkv_bias=True,
        norm_eps=VIT_EPS,
        pos_side=config.position_side,
        pos_interpolation="bicubic_antialias",
    )
    projector = ProjectorConfig(
        in_channels=config.vit_dim,
        maps=len(config.after),
        width=config.projector_width,
        out_channels=config.dim,
        blocks=config.projector_blocks,
        scales=config.scales,
        eps=config.projector_eps,
    )
    points = (config.points,) * len(config.scales)
    layer = RTDetrLayerConfig(config.dim, config.ffn, (config.self_heads, config.cross_heads), points, "relu")
    decoder = RFDetrDecoderConfig(layer, config.layers, config.classes, config.queries, config.skip_border)
    return RFDetrModel(vit, projector, decoder, grid=grid).eval()
