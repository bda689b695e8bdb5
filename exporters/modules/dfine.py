"""D-FINE and DEIM as one module: images in, logits and boxes out."""

from __future__ import annotations

import torch
from torch import nn

from vtk.exporters.modules.dfine_decoder import DecoderConfig, DFineDecoder
from vtk.exporters.modules.hgnetv2 import HGNetV2, HGNetV2Config
from vtk.exporters.modules.hybrid_encoder import HybridEncoder, HybridEncoderConfig

COARSEST_STRIDE = 32


def map_sizes(input_hw: tuple[int, int], levels: int) -> list[tuple[int, int]]:
    """Height and width of the feature maps, finest first; the last has stride 32."""
    strides = [COARSEST_STRIDE >> (levels - 1 - level) for level in range(levels)]
    return [(input_hw[0] // stride, input_hw[1] // stride) for stride in strides]


class DFineModel(nn.Module):
    """images (B, 3, *input_hw) in 0..1 -> logits (B, Q, classes), boxes (B, Q, 4) cxcywh as shares of the picture."""

    def __init__(
        self,
        backbone: HGNetV2Config,
        encoder: HybridEncoderConfig,
        decoder: DecoderConfig,
        *,
        input_hw: tuple[int, int],
    ) -> None:
        super().__init__()
        sizes_hw = map_sizes(input_hw, len(encoder.in_channels))
        self.backbone = HGNetV2(backbone, levels=len(sizes_hw))
        self.encoder = HybridEncoder(encoder, coarsest_hw=sizes_hw[-1])
        self.decoder = DFineDecoder(decoder, sizes_hw=sizes_hw)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        outputs: tuple[torch.Tensor, torch.Tensor] = self.decoder(self.encoder(self.backbone(images)))
        return outputs
