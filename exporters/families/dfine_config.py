"""The numbers of a D-FINE or DEIM model as one value that travels in a bundle, and the module that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtk.exporters.families.detector_config import RefiningConfig, with_tuples
from vtk.exporters.modules.dfine import DFineModel
from vtk.exporters.modules.hgnetv2 import HGNetV2Config, StageConfig

# backbone, levels, encoder hidden, decoder dim, decoder layers, bottlenecks
_VARIANTS = {
    ("B0", 2, 128, 128, 3, 2): "N",
    ("B0", 3, 256, 256, 3, 1): "S",
    ("B2", 3, 256, 256, 4, 2): "M",
    ("B4", 3, 256, 256, 6, 3): "L",
    ("B5", 3, 384, 256, 6, 3): "X",
}


@dataclass(frozen=True)
class DFineConfig(RefiningConfig):
    """`expansion` is the official name of `fusion_width`."""

    backbone: str
    stem: tuple[int, int]
    stages: tuple[StageConfig, ...]
    lab: bool
    frozen_bn: bool | None
    strides: tuple[int, ...]
    expansion: float

    @property
    def variant(self) -> str:
        """N, S, M, L or X of the official configs, else custom."""
        key = (self.backbone, self.levels, self.hidden, self.dim, self.layers, self.bottlenecks)
        return _VARIANTS.get(key, "custom")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DFineConfig:
        stages = tuple(StageConfig(**stage) for stage in data["stages"])
        return cls(**{**with_tuples(data), "stages": stages})


def build_model(config: DFineConfig, *, input_hw: tuple[int, int], queries: int, act: str) -> DFineModel:
    """Random weights, eval mode. `queries` and `act` (of the decoder) are what the tensors do not say."""
    backbone = HGNetV2Config(config.stem, config.stages, config.lab)
    decoder = config.decoder(queries=queries, act=act)
    return DFineModel(backbone, config.hybrid_encoder(), decoder, input_hw=input_hw).eval()
