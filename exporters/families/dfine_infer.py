"""Every config number of a D-FINE or DEIM checkpoint, from the shapes of its tensors and a few small buffers."""

from __future__ import annotations

from vtk.exporters.families.detector_config import check_laws
from vtk.exporters.families.detector_infer import ENCODER_HEADS, hgnet, points_per_level
from vtk.exporters.families.detector_tensors import Tensors, columns, count, rows, shared_number
from vtk.exporters.families.dfine_config import DFineConfig
from vtk.exporters.modules.dfine import COARSEST_STRIDE

# (channels after the first and last stem convolution, convolutions per block) of each HGNetV2.
_BACKBONES = {
    ((16, 16), 3): "B0",
    ((24, 32), 4): "B2",
    ((32, 48), 6): "B4",
    ((32, 64), 6): "B5",
}

OFFICIAL_POINTS = {2: (6, 6), 3: (3, 6, 3)}

_OFFICIAL_EXPANSIONS = (0.34, 0.5, 1.0)


def infer_config(tensors: Tensors) -> DFineConfig:
    """Raises CheckpointError where a tensor is missing that decides a number, or where numbers contradict."""
    backbone = hgnet(tensors)
    levels = count(tensors, r"encoder\.input_proj\.(\d+)\.conv\.weight")
    points = points_per_level(tensors, levels, OFFICIAL_POINTS.get(levels, ()))
    hidden = rows(tensors, "encoder.input_proj.0.conv.weight")
    fusion_width = rows(tensors, "encoder.fpn_blocks.0.cv2.1.conv.weight")
    config = DFineConfig(
        backbone=_BACKBONES.get((backbone.stem, backbone.stages[0].layers), "custom"),
        stem=backbone.stem,
        stages=backbone.stages,
        lab=backbone.lab,
        frozen_bn=_frozen_backbone(tensors),
        levels=levels,
        strides=tuple(COARSEST_STRIDE >> (levels - 1 - level) for level in range(levels)),
        in_channels=tuple(columns(tensors, f"encoder.input_proj.{i}.conv.weight") for i in range(levels)),
        hidden=hidden,
        encoder_ffn=rows(tensors, "encoder.encoder.0.layers.0.linear1.weight"),
        encoder_heads=ENCODER_HEADS,
        encoder_layers=count(tensors, r"encoder\.encoder\.0\.layers\.(\d+)\..*"),
        fusion_width=fusion_width,
        expansion=_expansion(fusion_width, hidden),
        bottlenecks=count(tensors, r"encoder\.fpn_blocks\.0\.cv2\.0\.bottlenecks\.(\d+)\..*"),
        dim=rows(tensors, "decoder.enc_output.proj.weight"),
        decoder_ffn=rows(tensors, "decoder.decoder.layers.0.linear1.weight"),
        layers=count(tensors, r"decoder\.decoder\.layers\.(\d+)\..*"),
        heads=rows(tensors, "decoder.decoder.layers.0.cross_attn.attention_weights.weight") // sum(points),
        points=points,
        classes=rows(tensors, "decoder.enc_score_head.weight"),
        reg_max=rows(tensors, "decoder.dec_bbox_head.0.layers.2.weight") // 4 - 1,
        reg_scale=shared_number(tensors, "reg_scale"),
        up=shared_number(tensors, "up"),
    )
    levels_law = "there are 2 to 4 levels, each from a stage of the backbone"
    check_laws("D-FINE and DEIM", config, {levels_law: 2 <= levels <= min(4, len(config.stages))} | config.laws())
    return config


def _frozen_backbone(tensors: Tensors) -> bool | None:
    """Frozen norms have no step counter. A file that was stripped of all counters does not tell."""
    counted = [key for key in tensors if key.endswith("num_batches_tracked")]
    return not any(key.startswith("backbone.") for key in counted) if counted else None


def _expansion(fusion_width: int, hidden: int) -> float:
    """The official config value if it gives this width, else the ratio itself."""
    official = [value for value in _OFFICIAL_EXPANSIONS if round(value * hidden // 2) == fusion_width]
    return official[0] if official else 2 * fusion_width / hidden
