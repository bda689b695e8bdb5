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
_HEAD = re.compile(r"(decoder\.dec_(?:bbox|score)_head)\.(\d+)\.(.+)")


def own_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of any layout under the module's names, as trained."""
    return _with_shared_heads({rename(key, _RULES): value for key, value in as_trained(tensors).items()})


def _with_shared_heads(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Where one head serves all layers, safetensors stores it once, as that of layer 0."""
    heads = [match for match in map(_HEAD.fullmatch, tensors) if match]
    layers = {match[1] for match in map(re.compile(r"decoder\.decoder\.layers\.(\d+)\..*").fullmatch, tensors) if match}
    shared = {kind for kind in {match[1] for match in heads} if {m[2] for m in heads if m[1] == kind} == {"0"}}
    copies = {
        f"{match[1]}.{layer}.{match[3]}": tensors[match[0]] for match in heads if match[1] in shared for layer in layers
    }
    return tensors | copies
