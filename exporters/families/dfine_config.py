"""The numbers of a D-FINE or DEIM model as one value that travels in a bundle, and the module that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vtk.exporters.modules.dfine import DFineModel
from vtk.exporters.modules.dfine_decoder import DecoderConfig
from vtk.exporters.modules.hgnetv2 import HGNetV2Config, StageConfig
from vtk.exporters.modules.hybrid_encoder import HybridEncoderConfig

# backbone, levels, encoder hidden, decoder dim, decoder layers, bottlenecks
_VARIANTS = {
    ("B0", 2, 128, 128, 3, 2): "N",
    ("B0", 3, 256, 256, 3, 1): "S",
    ("B2", 3, 256, 256, 4, 2): "M",
    ("B4", 3, 256, 256, 6, 3): "L",
    ("B5", 3, 384, 256, 6, 3): "X",
}


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DFineConfig:
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        fields["stages"] = tuple(StageConfig(**stage) for stage in data["stages"])
        return cls(**fields)


def build_model(config: DFineConfig, *, input_hw: tuple[int, int], queries: int, act: str) -> DFineModel:
    """Random weights, eval mode. `queries` and `act` (of the decoder) are what the tensors do not say."""
    backbone = HGNetV2Config(config.stem, config.stages, config.lab)
    encoder = HybridEncoderConfig(
        in_channels=config.in_channels,
        hidden=config.hidden,
        ffn=config.encoder_ffn,
        heads=config.encoder_heads,
        layers=config.encoder_layers,
        fusion_width=config.fusion_width,
        bottlenecks=config.bottlenecks,
    )
    decoder = DecoderConfig(
        in_channels=(config.hidden,) * config.levels,
        dim=config.dim,
        ffn=config.decoder_ffn,
        layers=config.layers,
        heads=config.heads,
        points=config.points,
        classes=config.classes,
        queries=queries,
        reg_max=config.reg_max,
        reg_scale=config.reg_scale,
        up=config.up,
        act=act,
    )
    return DFineModel(backbone, encoder, decoder, input_hw=input_hw).eval()
