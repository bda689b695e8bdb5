"""A SAM3 with a tracker of random weights, in the layouts of the hub and of the official file, and transformers' model.

The detector is the reduced one of the golden data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

Tensors = dict[str, torch.Tensor]

DIM, HEADS = 32, 4
_POINT_CONFIGS = {
    "prompt_encoder_config": {"hidden_size": DIM, "mask_input_channels": 16, "patch_size": 14},
    "mask_decoder_config": {
        "hidden_size": DIM,
        "num_attention_heads": HEADS,
        "mlp_dim": 48,
        "iou_head_hidden_dim": 24,
        "model_type": "sam3_tracker_mask_decoder",
    },
}
# transformers' names to those of the official file, below the prefixes
_TO_OFFICIAL = (
    (
        r"^prompt_encoder\.shared_embedding\.positional_embedding",
        "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix",
    ),
    (r"^prompt_encoder\.mask_embed\.conv1\.", "sam_prompt_encoder.mask_downscaling.0."),
    (r"^prompt_encoder\.mask_embed\.layer_norm1\.", "sam_prompt_encoder.mask_downscaling.1."),
    (r"^prompt_encoder\.mask_embed\.conv2\.", "sam_prompt_encoder.mask_downscaling.3."),
    (r"^prompt_encoder\.mask_embed\.layer_norm2\.", "sam_prompt_encoder.mask_downscaling.4."),
    (r"^prompt_encoder\.mask_embed\.conv3\.", "sam_prompt_encoder.mask_downscaling.6."),
    (r"^prompt_encoder\.", "sam_prompt_encoder."),
    (r"^no_memory_embedding$", "no_mem_embed"),
    (r"^mask_decoder\.upscale_conv1\.", "mask_decoder.output_upscaling.0."),
    (r"^mask_decoder\.upscale_layer_norm\.", "mask_decoder.output_upscaling.1."),
    (r"^mask_decoder\.upscale_conv2\.", "mask_decoder.output_upscaling.3."),
    (r"\.mlp\.proj_in\.", ".mlp.lin1."),
    (r"\.mlp\.proj_out\.", ".mlp.lin2."),
    (r"(mlps\.\d|_head)\.layers\.0\.", r"\1.layers.1."),
    (r"(mlps\.\d|_head)\.proj_in\.", r"\1.layers.0."),
    (r"(mlps\.\d|_head)\.proj_out\.", r"\1.layers.2."),
    (r"\.layer_norm_final_attn\.", ".norm_final_attn."),
    (r"\.layer_norm(\d)\.", r".norm\1."),
    (r"\.o_proj\.", ".out_proj."),
    (r"^mask_decoder\.", "sam_mask_decoder."),
)
_NECK_TO_OFFICIAL = (
    (r"^fpn_layers\.", ""),
    (r"^0\.scale_layers\.0\.", "0.dconv_2x2_0."),
    (r"^0\.scale_layers\.2\.", "0.dconv_2x2_1."),
    (r"^1\.scale_layers\.0\.", "1.dconv_2x2."),
    (r"\.proj1\.", ".conv_1x1."),
    (r"\.proj2\.", ".conv_3x3."),
)


def detector_config(golden: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((golden / "sam3_small_config.json").read_text())
    return config


def video_config(golden: Path) -> dict[str, Any]:
    """The config.json of the hub's layout."""
    return {
        "model_type": "sam3_video",
        "detector_config": detector_config(golden),
        "tracker_config": {"model_type": "sam3_tracker_video", **_POINT_CONFIGS},
    }


def make_tracker(golden: Path, *, seed: int = 0) -> Any:
    """transformers' `Sam3TrackerModel` over the golden picture encoder, set so that it does what the official one does.

    It takes another epsilon in the picture's norms, and adds the embedding "no frame before" to the coarsest of four
    maps, which is not used; with three maps it is the one that the official program adds it to.
    """
    from transformers import Sam3TrackerConfig, Sam3TrackerModel

    vision = detector_config(golden)["vision_config"]
    vision["scale_factors"] = [4.0, 2.0, 1.0]
    vision["layer_norm_eps"] = vision["backbone_config"]["layer_norm_eps"] = 1e-5
    size = vision["backbone_config"]["image_size"]
    prompt = {**_POINT_CONFIGS["prompt_encoder_config"], "image_size": size}
    config = Sam3TrackerConfig(
        vision_config=vision,
        prompt_encoder_config=prompt,
        mask_decoder_config=_POINT_CONFIGS["mask_decoder_config"],
        attn_implementation="eager",
    )
    torch.manual_seed(seed)
    model = Sam3TrackerModel(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(0, 0.2 if tensor.ndim == 1 else tensor[0].numel() ** -0.5)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.add_(1)
        model.prompt_encoder.shared_embedding.positional_embedding.normal_()
        model.shared_image_embedding.positional_embedding.copy_(
            model.prompt_encoder.shared_embedding.positional_embedding
        )
    backbone = {
        name.removeprefix("vision_encoder."): tensor
        for name, tensor in load_file(golden / "sam3_small.safetensors").items()
        if name.startswith("vision_encoder.backbone.")
    }
    found = model.vision_encoder.load_state_dict(backbone, strict=False)
    assert not found.unexpected_keys
    return model


def hub_tensors(golden: Path, tracker: Any) -> Tensors:
    """All tensors in the hub's layout."""
    tensors = {f"detector_model.{name}": value for name, value in load_file(golden / "sam3_small.safetensors").items()}
    for name, value in tracker.state_dict().items():
        if name.startswith("vision_encoder.neck."):
            tensors["tracker_neck." + name.removeprefix("vision_encoder.neck.")] = value
        elif not name.startswith("vision_encoder."):
            tensors[f"tracker_model.{name}"] = value
    return tensors


def official_tensors(golden: Path, tracker: Any) -> Tensors:
    """All tensors as the official file calls them."""
    stored: Tensors = torch.load(golden / "sam3_small.pt", weights_only=True)["model"]
    tensors = {name: value for name, value in stored.items() if "sam2_convs" not in name}
    for name, value in tracker.state_dict().items():
        if name.startswith("vision_encoder.neck."):
            below = _renamed(name.removeprefix("vision_encoder.neck."), _NECK_TO_OFFICIAL)
            tensors[f"detector.backbone.vision_backbone.sam2_convs.{below}"] = value
        elif name == "prompt_encoder.point_embed.weight":
            for label in range(4):
                tensors[f"tracker.sam_prompt_encoder.point_embeddings.{label}.weight"] = value[
                    label : label + 1
                ].clone()
        elif not name.startswith(("vision_encoder.", "shared_image_embedding.")):
            tensors[f"tracker.{_renamed(name, _TO_OFFICIAL)}"] = value
    return tensors


def write_official(folder: Path, golden: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    """The official file with a config.json beside it, as `vtk export` takes them."""
    path = folder / "sam3.pt"
    torch.save({"model": dict(tensors)}, path)
    (folder / "config.json").write_text(json.dumps(video_config(golden)))
    return path


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
