"""Checkpoint layouts of DEIMv2, brought to the names of our module."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from vtk.exporters.families.dfine_layout import as_trained
from vtk.exporters.keymap import rename

_RULES = (
    (r"^backbone\.dinov3\._model\.", "backbone.dinov3."),
    # Official sequences number their parts; conv3 and conv4 begin with an activation.
    (r"^backbone\.sta\.(stem|conv2)\.0\.", r"backbone.sta.\1.conv."),
    (r"^backbone\.sta\.(stem|conv2)\.1\.", r"backbone.sta.\1.norm."),
    (r"^backbone\.sta\.(conv[34])\.1\.", r"backbone.sta.\1.conv."),
    (r"^backbone\.sta\.(conv[34])\.2\.", r"backbone.sta.\1.norm."),
    (r"^backbone\.convs\.(\d)\.", r"backbone.fuse.\1.conv."),
    (r"^backbone\.norms\.(\d)\.", r"backbone.fuse.\1.norm."),
    (r"^encoder\.(down_sample\d)\.1\.", r"encoder.\1.conv."),
    (r"^encoder\.(down_sample\d)\.2\.", r"encoder.\1.norm."),
)
_HEADS = ("decoder.dec_bbox_head", "decoder.dec_score_head")
_LAYER = r"decoder\.decoder\.layers\.(\d+)\..*"


def own_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of any layout under the module's names, as trained."""
    return _with_shared_heads({rename(key, _RULES): value for key, value in as_trained(tensors).items()})


def _with_shared_heads(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Where one head serves all layers, safetensors stores it once, as that of layer 0."""
    layers = {match[1] for key in tensors if (match := re.fullmatch(_LAYER, key))}
    whole = dict(tensors)
    for head in _HEADS:
        stored = [key for key in tensors if key.startswith(f"{head}.")]
        if all(key.startswith(f"{head}.0.") for key in stored):
            whole |= {key.replace(f"{head}.0.", f"{head}.{layer}."): tensors[key] for key in stored for layer in layers}
    return whole
