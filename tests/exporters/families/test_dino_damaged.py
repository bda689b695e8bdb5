"""Whatever is wrong with a file, the answer is one of our errors that names the trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from transformers import (
    Dinov2Config,
    Dinov2Model,
    DINOv3ConvNextConfig,
    DINOv3ConvNextModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
)

from vtk.errors import CheckpointError, VtkError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model

Tensors = dict[str, torch.Tensor]
Make = Callable[..., Checkpoint]

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 1}
PEERS: dict[str, Callable[[], torch.nn.Module]] = {
    "dinov3-vit hf": lambda: DINOv3ViTModel(DINOv3ViTConfig(**SMALL, intermediate_size=64, num_register_tokens=1)),
    "dinov3-vit timm": lambda: timm.create_model("vit_small_patch16_dinov3_qkvb", embed_dim=64, depth=2, num_heads=1),
    "dinov2 hf": lambda: Dinov2Model(Dinov2Config(**SMALL, image_size=70, use_swiglu_ffn=True)),
    "dinov2 timm": lambda: timm.create_model(
        "vit_giant_patch14_reg4_dinov2", embed_dim=96, depth=2, num_heads=1, img_size=70
    ),
    "dinov3-convnext hf": lambda: DINOv3ConvNextModel(
        DINOv3ConvNextConfig(hidden_sizes=[4, 6, 8, 10], depths=[1, 1, 1, 1])
    ),
}
SHAPES = ((), (0,), (3,), (2, 0, 2), (2, 3, 1, 1, 2))


@pytest.mark.parametrize("name", PEERS)
def test_damaged_tensors_end_in_our_errors(name: str, make_checkpoint: Make) -> None:
    tensors = dict(PEERS[name]().state_dict())
    load_model(make_checkpoint(tensors), FamilyOptions())
    needed = [key for key in tensors if ".1." not in key and "mask_token" not in key]
    for key in needed:
        # without positions in attention a key bias has no effect, so a file may leave it out
        if not key.endswith("k_proj.bias"):
            with pytest.raises(VtkError):
                load_model(make_checkpoint({k: v for k, v in tensors.items() if k != key}), FamilyOptions())
        for shape in SHAPES:
            with pytest.raises(VtkError):
                load_model(make_checkpoint(tensors | {key: torch.zeros(shape)}), FamilyOptions())


def test_a_block_number_out_of_thin_air_builds_nothing(make_checkpoint: Make) -> None:
    tensors = dict(PEERS["dinov3-vit hf"]().state_dict()) | {"model.layer.999999999.norm1.weight": torch.ones(64)}
    with pytest.raises(CheckpointError, match="999999999"):
        load_model(make_checkpoint(tensors), FamilyOptions())


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"num_attention_heads": "six"}, "num_attention_heads"),
        ({"num_attention_heads": -1}, "num_attention_heads"),
        ({"num_attention_heads": 32}, "RoPE"),
        ({"layer_norm_eps": None}, "layer_norm_eps"),
        ({"rope_theta": [100]}, "rope_theta"),
        ({"hidden_act": "relu"}, "relu"),
    ],
)
def test_nonsense_in_the_config_is_named(config: dict[str, Any], match: str, make_checkpoint: Make) -> None:
    tensors = PEERS["dinov3-vit hf"]().state_dict()
    with pytest.raises(CheckpointError, match=match):
        load_model(make_checkpoint(tensors, config=config), FamilyOptions())


@pytest.mark.parametrize("kept", ["k", "v"])
def test_a_bias_without_its_query_bias_is_not_lost(kept: str, make_checkpoint: Make) -> None:
    tensors = {
        key: value
        for key, value in PEERS["dinov2 hf"]().state_dict().items()
        if not key.endswith("_proj.bias") or "mlp" in key or f".{kept}_proj" in key or ".o_proj" in key
    }
    with pytest.raises(VtkError, match=rf"attn\.{kept}\.bias"):
        load_model(make_checkpoint(tensors), FamilyOptions())
