"""The two namings of RF-DETR's tensors, and what they are called here."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from vtk.errors import CheckpointError
from vtk.exporters.families.detector_tensors import Tensors, count, join_projections, rows
from vtk.exporters.keymap import Rules, rename
from vtk.exporters.modules.dino_keys import merge_qkv

_OFFICIAL = (
    "backbone.0.encoder.encoder.embeddings.position_embeddings",
    "backbone.0.projector.stages.0.0.cv1.conv.weight",
    "transformer.decoder.layers.0.cross_attn.value_proj.weight",
    "refpoint_embed.weight",
)
_IN_MEMORY = (
    "model.backbone.backbone.embeddings.position_embeddings",
    "model.backbone.projector.projector_layer.conv1.conv.weight",
    "model.decoder.layers.0.cross_attn.value_proj.weight",
    "model.reference_point_embed.weight",
)

_VIT: Rules = (
    (r"^vit\.embeddings\.(cls_token|mask_token)$", r"vit.\1"),
    (r"^vit\.embeddings\.position_embeddings$", "vit.pos_embed"),
    (r"^vit\.embeddings\.patch_embeddings\.projection\.", "vit.patch_embed.proj."),
    (r"^vit\.encoder\.layer\.(\d+)\.", r"vit.blocks.\1."),
    (r"^vit\.layernorm\.", "vit.norm."),
    (r"^(vit\..*)\.attention\.attention\.([qkv])(?:uery|ey|alue)\.", r"\1.attn.\2."),
    (r"^(vit\..*)\.attention\.output\.dense\.", r"\1.attn.proj."),
    (r"^(vit\..*)\.attention\.([qkv])_proj\.", r"\1.attn.\2."),
    (r"^(vit\..*)\.attention\.o_proj\.", r"\1.attn.proj."),
    (r"^(vit\..*)\.layer_scale(\d)\.lambda1$", r"\1.ls\2.gamma"),
)
_OFFICIAL_RULES: Rules = (
    (r"^backbone\.0\.encoder\.encoder\.", "vit."),
    (r"^backbone\.0\.projector\.", "projector."),
    (r"^transformer\.", ""),
    (r"^(refpoint_embed|query_feat)\.weight$", r"\1"),
    *_VIT,
)
# What transformers calls the tensors of a model in memory; on disk they have their official names.
_IN_MEMORY_RULES: Rules = (
    (r"^model\.backbone\.backbone\.", "vit."),
    (r"^model\.backbone\.projector\.layer_norm\.", "projector.stages.0.1."),
    (r"^model\.backbone\.projector\.projector_layer\.", "projector.stages.0.0."),
    (r"^(projector\..*)\.bottlenecks\.(\d+)\.", r"\1.m.\2."),
    (r"^(projector\..*)\.conv([12])\.(conv|norm)\.", r"\1.cv\2.\3."),
    (r"^(projector\..*)\.norm\.(weight|bias)$", r"\1.bn.\2"),
    (r"^(projector\..*)\.conv([12])\.", r"\1.cv\2."),
    (r"^model\.reference_point_embed\.weight$", "refpoint_embed"),
    (r"^model\.query_feat\.weight$", "query_feat"),
    (r"^model\.decoder\.layernorm\.", "decoder.norm."),
    (r"^model\.", ""),
    (r"\.self_attn_layer_norm\.", ".norm1."),
    (r"\.cross_attn_layer_norm\.", ".norm2."),
    (r"^(decoder\.layers\.\d+)\.layer_norm\.", r"\1.norm3."),
    (r"^(decoder\..*)\.mlp\.fc([12])\.", r"\1.linear\2."),
    (r"\.self_attn\.o_proj\.", ".self_attn.out_proj."),
    *_VIT,
)
_GROUPED = re.compile(r"(enc_output|enc_output_norm|enc_out_class_embed|enc_out_bbox_embed)\.(\d+)\.(.*)")


def naming(tensors: Tensors) -> str | None:
    """`official` (also what transformers writes), `in memory` (a state dict of transformers' model), or None."""
    if any(key.startswith(("segmentation_head.", "segmentation_bias")) for key in tensors):
        return None
    if all(key in tensors for key in _OFFICIAL):
        return "official"
    return "in memory" if all(key in tensors for key in _IN_MEMORY) else None


def from_any(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Under the names of the module, with the first query group alone: the others act in training.

    Raises CheckpointError where groups or projections have no other half.
    """
    rules = _OFFICIAL_RULES if naming(tensors) == "official" else _IN_MEMORY_RULES
    named = merge_qkv({rename(key, rules): value for key, value in tensors.items()})
    return _first_group(join_projections(named))


def _first_group(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    groups = count(named, r"enc_output\.(\d+)\.weight")
    first: dict[str, torch.Tensor] = {}
    for name, value in named.items():
        if match := _GROUPED.fullmatch(name):
            if int(match[2]) == 0:
                first[f"{match[1]}.{match[3]}"] = value
            elif int(match[2]) >= groups:
                first[name] = value
        elif name in ("refpoint_embed", "query_feat"):
            if rows(named, name) % groups:
                raise CheckpointError(f"'{name}' has {rows(named, name)} rows, which {groups} groups cannot share.")
            first[name] = value[: rows(named, name) // groups]
        else:
            first[name] = value
    return first
