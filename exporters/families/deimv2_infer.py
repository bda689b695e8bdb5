"""Every config number of a DEIMv2 checkpoint, from the shapes of its tensors and a few small buffers."""

from __future__ import annotations

import re

from vtk.errors import CheckpointError
from vtk.exporters.families.deimv2_config import DEIMv2Config, EncoderKind
from vtk.exporters.families.detector_config import check_laws
from vtk.exporters.families.detector_infer import ENCODER_HEADS, hgnet, points_per_level
from vtk.exporters.families.detector_tensors import Tensors, columns, count, rows, shared_number, tensor
from vtk.exporters.modules.deimv2_backbone import STAConfig
from vtk.exporters.modules.dino_keys import vit_shapes
from vtk.exporters.modules.dino_vit import ViTConfig

VIT_PREFIX = "backbone.dinov3."

# Points of the lite encoder's two levels; without attention there, the decoder looks less far on the coarse one.
LITE_POINTS = (4, 2)
OFFICIAL_POINTS = {2: (6, 6), 3: (3, 6, 3)}

# The distilled ViT-Tiny keeps timm's epsilon; DINOv3 has its own (facebookresearch/dinov3, `layernormbf16`).
TINY_NORM_EPS, DINOV3_NORM_EPS = 1e-6, 1e-5


def infer_config(tensors: Tensors, after: tuple[int, int, int]) -> DEIMv2Config:
    """`tensors` under the module's own names, as trained; `after` as in STAConfig.

    Raises CheckpointError where a tensor is missing that decides a number, or where numbers contradict.
    """
    sta = _sta(tensors, after) if "backbone.sta.stem.conv.weight" in tensors else None
    encoder = _encoder_kind(tensors)
    fuse = "encoder.fpn_block" if encoder == "lite" else "encoder.fpn_blocks.0"
    layers = count(tensors, r"decoder\.decoder\.layers\.(\d+)\..*")
    backbone = None if sta else hgnet(tensors)
    in_channels = _in_channels(tensors, sta, encoder)
    levels = 2 if encoder == "lite" else len(in_channels)
    points = points_per_level(tensors, levels, LITE_POINTS if encoder == "lite" else OFFICIAL_POINTS.get(levels, ()))
    attention = encoder != "lite"
    config = DEIMv2Config(
        hgnet=backbone,
        sta=sta,
        encoder=encoder,
        levels=levels,
        in_channels=in_channels,
        hidden=rows(tensors, f"{fuse}.cv4.conv.weight"),
        encoder_ffn=rows(tensors, "encoder.encoder.0.layers.0.linear1.weight") if attention else 0,
        encoder_heads=ENCODER_HEADS if attention else 0,
        encoder_layers=count(tensors, r"encoder\.encoder\.0\.layers\.(\d+)\..*") if attention else 0,
        fusion_width=rows(tensors, f"{fuse}.cv2.0.conv1.conv.weight") // 2,
        bottlenecks=count(tensors, re.escape(fuse) + r"\.cv2\.0\.bottlenecks\.(\d+)\..*"),
        dim=columns(tensors, "decoder.enc_score_head.weight"),
        decoder_ffn=rows(tensors, "decoder.decoder.layers.0.swish_ffn.w12.weight"),
        gateway="decoder.decoder.layers.0.gateway.gate.weight" in tensors,
        layers=layers,
        heads=rows(tensors, "decoder.decoder.layers.0.cross_attn.attention_weights.weight") // sum(points),
        points=points,
        classes=rows(tensors, "decoder.enc_score_head.weight"),
        reg_max=rows(tensors, "decoder.dec_bbox_head.0.layers.2.weight") // 4 - 1,
        reg_scale=shared_number(tensors, "reg_scale"),
        up=shared_number(tensors, "up"),
    )
    _check(config)
    return config


def is_tiny(tensors: Tensors) -> bool:
    """Whether the transformer is the distilled ViT-Tiny: it has no layer scale."""
    return f"{VIT_PREFIX}blocks.0.ls1.gamma" not in tensors


def _encoder_kind(tensors: Tensors) -> EncoderKind:
    if any(key.startswith("encoder.bi_fusion.") for key in tensors):
        return "lite"
    return "smooth_sum" if "encoder.fpn_blocks.0.cv2.1.conv.weight" in tensors else "sum"


def _in_channels(tensors: Tensors, sta: STAConfig | None, encoder: EncoderKind) -> tuple[int, ...]:
    """Channels of the maps that the encoder takes. Where they are as wide as it is, it has no projection."""
    if sta is not None:
        return (sta.hidden,) * 3
    if encoder == "lite":
        return (columns(tensors, "encoder.input_proj.0.conv.weight"),)
    levels = 1 + count(tensors, r"encoder\.lateral_convs\.(\d+)\..*")
    channels = tuple(stage.out_channels for stage in hgnet(tensors).stages)
    if levels > len(channels):
        raise CheckpointError(f"The encoder fuses {levels} levels, but the backbone has {len(channels)} stages.")
    return channels[-levels:]


def _sta(tensors: Tensors, after: tuple[int, int, int]) -> STAConfig:
    vit = {key.removeprefix(VIT_PREFIX): value for key, value in tensors.items() if key.startswith(VIT_PREFIX)}
    shapes, tiny = vit_shapes(vit), is_tiny(tensors)
    if after[-1] >= shapes["depth"]:
        raise CheckpointError(
            f"Maps are taken after the blocks {after}, counted from 0, but the transformer has {shapes['depth']}."
        )
    head_dim = 4 * tensor(vit, "rope_embed.periods").numel()
    if not head_dim or shapes["dim"] % head_dim:
        raise CheckpointError(f"Heads of {head_dim} do not divide the transformer's width of {shapes['dim']}.")
    config = ViTConfig(
        **shapes,
        heads=shapes["dim"] // head_dim,
        activation="silu" if shapes["ffn"] == "swiglu" else "gelu",
        norm_eps=TINY_NORM_EPS if tiny else DINOV3_NORM_EPS,
        layer_scale=not tiny,
        final_norm="norm.weight" in vit,
    )
    return STAConfig(
        vit=config,
        planes=rows(tensors, "backbone.sta.stem.conv.weight"),
        hidden=rows(tensors, "backbone.fuse.0.conv.weight"),
        after=after,
    )


def _check(config: DEIMv2Config) -> None:
    laws = {
        "there are 2 to 4 levels": 2 <= config.levels <= 4,
        "the feed-forward part has an even number of rows": config.decoder_ffn % 2 == 0,
        "a patch of the transformer has 16 pixels a side": config.sta is None or config.sta.vit.patch == 16,
    }
    check_laws("DEIMv2", config, laws | config.laws())
