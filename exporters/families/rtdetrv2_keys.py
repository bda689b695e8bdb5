"""What transformers calls the tensors of RT-DETRv2, and their official names."""

from __future__ import annotations

import re

import torch

from vtk.errors import CheckpointError
from vtk.exporters.families.detector_tensors import Tensors, join_projections
from vtk.exporters.keymap import Rules, rename

_SIGNATURE = (
    r"model\.backbone\.model\.embedder\.embedder\.0\.convolution\.weight",
    r"model\.decoder\.layers\.0\.encoder_attn\.n_points_scale",
    r"model\.encoder_input_proj\.0\.0\.weight",
)

_HEADS = {"class": "score", "bbox": "bbox"}

_RULES: Rules = (
    (
        r"^model\.backbone\.model\.embedder\.embedder\.(\d)\.",
        lambda found: f"backbone.conv1.conv1_{int(found[1]) + 1}.",
    ),
    (r"^model\.backbone\.model\.encoder\.stages\.(\d+)\.layers\.(\d+)\.", r"backbone.res_layers.\1.blocks.\2."),
    (r"^(backbone\..*)\.layer\.(\d)\.", lambda found: f"{found[1]}.branch2{'abc'[int(found[2])]}."),
    (r"^(backbone\..*)\.shortcut\.1\.", r"\1.short.conv."),
    (r"^(backbone\..*)\.shortcut\.", r"\1.short."),
    (r"^(backbone\..*)\.convolution\.", r"\1.conv."),
    (r"^(backbone\..*)\.normalization\.", r"\1.norm."),
    (r"^model\.(encoder|decoder)_input_proj\.(\d+)\.0\.", r"\1.input_proj.\2.conv."),
    (r"^model\.(encoder|decoder)_input_proj\.(\d+)\.1\.", r"\1.input_proj.\2.norm."),
    (r"^model\.encoder\.aifi\.", "encoder.encoder."),
    (r"^model\.encoder\.", "encoder."),
    (r"^(encoder\.encoder\..*)\.final_layer_norm\.", r"\1.norm2."),
    (r"^(model\.decoder\.)?(class|bbox)_embed\.", lambda found: f"decoder.dec_{_HEADS[found[2]]}_head."),
    (r"^model\.decoder\.layers\.", "decoder.decoder.layers."),
    (r"^model\.decoder\.", "decoder."),
    (r"^model\.enc_output\.0\.", "decoder.enc_output.proj."),
    (r"^model\.enc_output\.1\.", "decoder.enc_output.norm."),
    (r"^model\.(enc_|denoising_)", r"decoder.\1"),
    (r"\.self_attn_layer_norm\.", ".norm1."),
    (r"\.encoder_attn_layer_norm\.", ".norm2."),
    (r"\.final_layer_norm\.", ".norm3."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.n_points_scale$", ".num_points_scale"),
    (r"\.(?:mlp\.)?fc([12])\.", r".linear\1."),
    (r"\.self_attn\.(?:o|out)_proj\.", ".self_attn.out_proj."),
)


def is_hugging_face(tensors: Tensors) -> bool:
    """Whether transformers wrote them."""
    return all(any(re.fullmatch(pattern, key) for key in _whole(tensors)) for pattern in _SIGNATURE)


def from_hugging_face(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The tensors under their official names. Raises CheckpointError where two copies of a head differ."""
    named: dict[str, torch.Tensor] = {}
    for key, tensor in _whole(tensors).items():
        name = rename(key, _RULES)
        if name in named and not torch.equal(named[name], tensor):
            raise CheckpointError(f"The checkpoint holds '{name}' twice, under two names, with different values.")
        named[name] = tensor
    return join_projections(named)


def _whole(tensors: Tensors) -> Tensors:
    """With the prefix that the reader has taken for a wrapper, since every name of a file without copies has it."""
    stripped = any(key.startswith("backbone.model.embedder.") for key in tensors)
    return {f"model.{key}": tensor for key, tensor in tensors.items()} if stripped else tensors
