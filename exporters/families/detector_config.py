"""The numbers that all detectors with a hybrid encoder and a deformable decoder have, whatever their backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from vtk.errors import CheckpointError
from vtk.exporters.modules.dfine_decoder import DecoderConfig
from vtk.exporters.modules.hybrid_encoder import HybridEncoderConfig

Config = TypeVar("Config", bound="DetectorConfig")


@dataclass(frozen=True)
class DetectorConfig:
    """What the tensors say. Lists run over levels, finest first.

    `encoder_ffn`, `encoder_heads` and `encoder_layers` are 0 for an encoder without attention.
    """

    levels: int
    in_channels: tuple[int, ...]
    hidden: int
    encoder_ffn: int
    encoder_heads: int
    encoder_layers: int
    fusion_width: int
    bottlenecks: int
    dim: int
    decoder_ffn: int
    layers: int
    heads: int
    points: tuple[int, ...]
    classes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls: type[Config], data: Mapping[str, Any]) -> Config:
        return cls(**with_tuples(data))

    def laws(self) -> dict[str, bool]:
        """What must hold although no shape shows it, in words, and whether it does."""
        return {
            "the encoder width is a multiple of its heads": self.hidden % max(self.encoder_heads, 1) == 0,
            "the decoder width is a multiple of its heads": self.heads > 0 and self.dim % self.heads == 0,
        }

    def hybrid_encoder(self) -> HybridEncoderConfig:
        """Of an encoder with attention."""
        return HybridEncoderConfig(
            in_channels=self.in_channels,
            hidden=self.hidden,
            ffn=self.encoder_ffn,
            heads=self.encoder_heads,
            layers=self.encoder_layers,
            fusion_width=self.fusion_width,
            bottlenecks=self.bottlenecks,
        )


@dataclass(frozen=True)
class RefiningConfig(DetectorConfig):
    """With the decoder of D-FINE, which refines boxes as distributions."""

    reg_max: int
    reg_scale: float
    up: float

    def laws(self) -> dict[str, bool]:
        return super().laws() | {
            "the number of bins is odd and at least 5": self.reg_max >= 4 and self.reg_max % 2 == 0,
            "up and reg_scale are positive": self.up > 0 and self.reg_scale > 0,
        }

    def decoder(self, *, queries: int, act: str) -> DecoderConfig:
        """`queries` and `act` are what the tensors do not say."""
        return DecoderConfig(
            in_channels=(self.hidden,) * self.levels,
            dim=self.dim,
            ffn=self.decoder_ffn,
            layers=self.layers,
            heads=self.heads,
            points=self.points,
            classes=self.classes,
            queries=queries,
            reg_max=self.reg_max,
            reg_scale=self.reg_scale,
            up=self.up,
            act=act,
        )


def with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a frozen config from JSON, which has lists where there were tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def check_laws(title: str, config: object, laws: Mapping[str, bool]) -> None:
    """Raises CheckpointError for numbers that no shape of a weight questions, but that the network cannot run with."""
    broken = [law for law, holds in laws.items() if not holds]
    if broken:
        raise CheckpointError(f"The tensors contradict each other. In {title} {'; '.join(broken)}: {config}.")
