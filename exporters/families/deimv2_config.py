"""The numbers of a DEIMv2 model as one value that travels in a bundle, and the module that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from vtk.exporters.families.detector_config import RefiningConfig, with_tuples
from vtk.exporters.modules.deimv2 import DEIMv2Decoder, DEIMv2Model
from vtk.exporters.modules.deimv2_backbone import DinoSTA, STAConfig
from vtk.exporters.modules.deimv2_encoder import (
    LiteEncoder,
    LiteEncoderConfig,
    SmoothSumHybridEncoder,
    SumHybridEncoder,
)
from vtk.exporters.modules.dfine import map_sizes
from vtk.exporters.modules.dino_vit import ViTConfig
from vtk.exporters.modules.hgnetv2 import HGNetV2, HGNetV2Config, StageConfig

EncoderKind = Literal["lite", "sum", "smooth_sum"]

ACTIVATION = "silu"

# (backbone, encoder width, decoder layers). The last four have config files, but no released weights.
_VARIANTS = {
    ("Atto", 64, 3): "Atto",
    ("Femto", 96, 3): "Femto",
    ("Pico", 112, 3): "Pico",
    ("B0", 128, 3): "N",
    ("ViT-Tiny", 192, 4): "S",
    ("ViT-Tiny+", 256, 4): "M",
    ("ViT-S", 224, 4): "L",
    ("ViT-S+", 256, 6): "X",
    ("B0", 256, 3): "HGNetV2-S",
    ("B2", 256, 4): "HGNetV2-M",
    ("B4", 256, 6): "HGNetV2-L",
    ("B5", 384, 6): "HGNetV2-X",
}

# (stages, channels of the stem, convolutions per block, blocks and channels of the last stage)
_HGNETS = {
    (3, (16, 16), 3, 1, 256): "Atto",
    (3, (16, 16), 3, 1, 512): "Femto",
    (3, (16, 16), 3, 2, 512): "Pico",
    (4, (16, 16), 3, 1, 1024): "B0",
    (4, (24, 32), 4, 1, 1536): "B2",
    (4, (32, 48), 6, 1, 2048): "B4",
    (4, (32, 64), 6, 2, 2048): "B5",
}
# (dim, depth, FFN)
_VITS = {
    (192, 12, "mlp"): "ViT-Tiny",
    (256, 12, "mlp"): "ViT-Tiny+",
    (384, 12, "mlp"): "ViT-S",
    (384, 12, "swiglu"): "ViT-S+",
}


@dataclass(frozen=True)
class DEIMv2Config(RefiningConfig):
    """Exactly one of `hgnet` and `sta` is the backbone. The lite encoder has no attention."""

    hgnet: HGNetV2Config | None
    sta: STAConfig | None
    encoder: EncoderKind
    gateway: bool

    @property
    def backbone(self) -> str:
        """Official name of the backbone, else custom."""
        if self.hgnet is not None:
            last = self.hgnet.stages[-1]
            key = (len(self.hgnet.stages), self.hgnet.stem, last.layers, last.blocks, last.out_channels)
            return _HGNETS.get(key, "custom")
        assert self.sta is not None
        vit = self.sta.vit
        return _VITS.get((vit.dim, vit.depth, vit.ffn), "custom")

    @property
    def variant(self) -> str:
        """Atto to X of the official configs, else custom."""
        return _VARIANTS.get((self.backbone, self.hidden, self.layers), "custom")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DEIMv2Config:
        fields = with_tuples(data)
        if data["hgnet"] is not None:
            stages = tuple(StageConfig(**stage) for stage in data["hgnet"]["stages"])
            fields["hgnet"] = HGNetV2Config(tuple(data["hgnet"]["stem"]), stages, data["hgnet"]["lab"])
        if data["sta"] is not None:
            vit = ViTConfig.from_mapping(data["sta"]["vit"])
            fields["sta"] = STAConfig(**(data["sta"] | {"vit": vit, "after": tuple(data["sta"]["after"])}))
        return cls(**fields)


def build_model(config: DEIMv2Config, *, input_hw: tuple[int, int], queries: int) -> DEIMv2Model:
    """Random weights, eval mode. `queries` is what the tensors do not say. A DINOv3 backbone must yet be baked."""
    sizes_hw = map_sizes(input_hw, config.levels)
    decoder = config.decoder(queries=queries, act=ACTIVATION)
    return DEIMv2Model(
        _backbone(config, input_hw),
        _encoder(config, sizes_hw[-1]),
        DEIMv2Decoder(decoder, gateway=config.gateway, sizes_hw=sizes_hw),
    ).eval()


def _backbone(config: DEIMv2Config, input_hw: tuple[int, int]) -> nn.Module:
    if config.hgnet is not None:
        return HGNetV2(config.hgnet, levels=len(config.in_channels))
    assert config.sta is not None
    return DinoSTA(config.sta, input_hw=input_hw)


def _encoder(config: DEIMv2Config, coarsest_hw: tuple[int, int]) -> nn.Module:
    if config.encoder == "lite":
        return LiteEncoder(
            LiteEncoderConfig(config.in_channels[0], config.hidden, config.fusion_width, config.bottlenecks)
        )
    kind = SumHybridEncoder if config.encoder == "sum" else SmoothSumHybridEncoder
    return kind(config.hybrid_encoder(), coarsest_hw=coarsest_hw)
