"""What SAM3's tensors are called: in the official file, in Hugging Face's, and in the module of this project."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from vtk.errors import CheckpointError
from vtk.exporters.families.sam3_point_keys import UNUSED as UNUSED_OF_POINTS
from vtk.exporters.families.sam3_point_keys import point_names, split_labels
from vtk.exporters.keymap import Rules, rename

# Of the detector's names, one that only this layout has; before it stands the prefix, if any.
_SIGNATURES = {
    "official": "transformer.decoder.presence_token.weight",
    "hf": "detr_decoder.presence_token.weight",
}
_PREFIXES = ("", "detector.", "detector_model.")

_OFFICIAL: Rules = (
    (r"^backbone\.vision_backbone\.trunk\.", "vision."),
    (r"^vision\.pos_embed$", "vision.position"),
    (r"^vision\.patch_embed\.proj\.", "vision.patch_embed."),
    (r"^vision\.ln_pre\.", "vision.norm_pre."),
    (r"^(vision\.blocks\.\d+\.attn)\.proj\.", r"\1.o_proj."),
    (r"^backbone\.vision_backbone\.convs\.(\d)\.dconv_2x2(_0)?\.", r"vision.neck.\1.up.0."),
    (r"^backbone\.vision_backbone\.convs\.(\d)\.dconv_2x2_1\.", r"vision.neck.\1.up.1."),
    (r"^backbone\.vision_backbone\.convs\.(\d)\.conv_1x1\.", r"vision.neck.\1.proj1."),
    (r"^backbone\.vision_backbone\.convs\.(\d)\.conv_3x3\.", r"vision.neck.\1.proj2."),
    (r"^backbone\.language_backbone\.resizer\.", "text.projection."),
    (r"^backbone\.language_backbone\.encoder\.", "text."),
    (r"^text\.positional_embedding$", "text.position"),
    (r"^text\.ln_final\.", "text.norm."),
    (r"^text\.transformer\.resblocks\.", "text.layers."),
    (r"^(text\.layers\.\d+)\.ln_(\d)\.", r"\1.norm\2."),
    (r"^(text\.layers\.\d+)\.mlp\.c_fc\.", r"\1.mlp.fc1."),
    (r"^(text\.layers\.\d+)\.mlp\.c_proj\.", r"\1.mlp.fc2."),
    (r"^geometry_encoder\.encode\.(\d+)\.", r"geometry.layers.\1."),
    (r"^geometry_encoder\.img_pre_norm\.", "geometry.vision_norm."),
    (r"^geometry_encoder\.norm\.", "geometry.prompt_norm."),
    (r"^geometry_encoder\.encode_norm\.", "geometry.output_norm."),
    (r"^geometry_encoder\.", "geometry."),
    (r"^transformer\.(encoder|decoder)\.", r"\1."),
    (r"\.cross_attn_image\.", ".cross_attn."),
    (r"^(decoder\.layers\.\d+)\.cross_attn\.", r"\1.vision_attn."),
    (r"^(decoder\.layers\.\d+)\.ca_text\.", r"\1.text_attn."),
    (r"^(decoder\.layers\.\d+)\.norm1\.", r"\1.vision_norm."),
    (r"^(decoder\.layers\.\d+)\.catext_norm\.", r"\1.text_norm."),
    (r"^(decoder\.layers\.\d+)\.norm2\.", r"\1.self_norm."),
    (r"^(decoder\.layers\.\d+)\.norm3\.", r"\1.mlp_norm."),
    (r"^((?:geometry|encoder|decoder)\.layers\.\d+)\.linear(\d)\.", r"\1.mlp.fc\2."),
    (r"^decoder\.bbox_embed\.", "decoder.box_head."),
    (r"^decoder\.boxRPB_embed_([xy])\.", r"decoder.rpb_\1."),
    (r"^decoder\.presence_token_head\.", "decoder.presence_head."),
    (r"^decoder\.presence_token_out_norm\.", "decoder.presence_norm."),
    (r"^dot_prod_scoring\.prompt_mlp\.out_norm\.", "scoring.prompt_norm."),
    (r"^dot_prod_scoring\.hs_proj\.", "scoring.query_proj."),
    (r"^dot_prod_scoring\.", "scoring."),
    (r"^segmentation_head\.pixel_decoder\.conv_layers\.", "masks.convs."),
    (r"^segmentation_head\.pixel_decoder\.norms\.", "masks.norms."),
    (r"^segmentation_head\.mask_predictor\.mask_embed\.", "masks.embedder."),
    (r"^segmentation_head\.instance_seg_head\.", "masks.instance."),
    (r"^segmentation_head\.semantic_seg_head\.", "masks.semantic."),
    (r"^segmentation_head\.cross_attend_prompt\.", "masks.prompt_attn."),
    (r"^segmentation_head\.cross_attn_norm\.", "masks.prompt_norm."),
    (r"\.out_proj\.", ".o_proj."),
)
_HF: Rules = (
    (r"^vision_encoder\.backbone\.", "vision."),
    (r"^vision\.embeddings\.patch_embeddings\.projection\.", "vision.patch_embed."),
    (r"^vision\.embeddings\.position_embeddings$", "vision.position"),
    (r"^vision\.layer_norm\.", "vision.norm_pre."),
    (r"^vision\.layers\.(\d+)\.attention\.", r"vision.blocks.\1.attn."),
    (r"^vision\.layers\.", "vision.blocks."),
    (r"^vision_encoder\.neck\.fpn_layers\.(\d)\.scale_layers\.0\.", r"vision.neck.\1.up.0."),
    (r"^vision_encoder\.neck\.fpn_layers\.(\d)\.scale_layers\.2\.", r"vision.neck.\1.up.1."),
    (r"^vision_encoder\.neck\.fpn_layers\.", "vision.neck."),
    (r"^text_projection\.", "text.projection."),
    (r"^text_encoder\.(text_model\.)?(embeddings\.|encoder\.)?", "text."),
    (r"^text\.position_embedding\.weight$", "text.position"),
    (r"^text\.final_layer_norm\.", "text.norm."),
    (r"^(text\.layers\.\d+)\.self_attn\.", r"\1.attn."),
    (r"^geometry_encoder\.(vision|prompt|output)_layer_norm\.", r"geometry.\1_norm."),
    (r"^geometry_encoder\.", "geometry."),
    (r"^detr_(encoder|decoder)\.", r"\1."),
    (r"^decoder\.(output_)?layer_norm\.", "decoder.norm."),
    (r"^decoder\.presence_layer_norm\.", "decoder.presence_norm."),
    (r"^decoder\.box_rpb_embed_([xy])\.", r"decoder.rpb_\1."),
    (r"^(decoder\.layers\.\d+)\.(text|vision)_cross_attn\.", r"\1.\2_attn."),
    (r"^(decoder\.layers\.\d+)\.(text|vision)_cross_attn_layer_norm\.", r"\1.\2_norm."),
    (r"^(decoder\.layers\.\d+)\.self_attn_layer_norm\.", r"\1.self_norm."),
    (r"^(decoder\.layers\.\d+)\.mlp_layer_norm\.", r"\1.mlp_norm."),
    (r"^dot_product_scoring\.text_mlp_out_norm\.", "scoring.prompt_norm."),
    (r"^dot_product_scoring\.text_(mlp|proj)\.", r"scoring.prompt_\1."),
    (r"^dot_product_scoring\.", "scoring."),
    (r"^mask_decoder\.pixel_decoder\.conv_layers\.", "masks.convs."),
    (r"^mask_decoder\.pixel_decoder\.", "masks."),
    (r"^mask_decoder\.mask_embedder\.", "masks.embedder."),
    (r"^mask_decoder\.(instance|semantic)_projection\.", r"masks.\1."),
    (r"^mask_decoder\.prompt_cross_attn_norm\.", "masks.prompt_norm."),
    (r"^mask_decoder\.prompt_cross_attn\.", "masks.prompt_attn."),
    (r"\.layer_norm(\d)\.", r".norm\1."),
    (r"\.out_proj\.", ".o_proj."),
)
_RULES = {"official": _OFFICIAL, "hf": _HF}

# Names, as `to_module_names` leaves them, of what has no effect on a picture and its prompts.
UNUSED = (
    *UNUSED_OF_POINTS,
    r"tracker\..*",  # the memory of the official file's tracker, and all of SAM 3.1's
    r"tracker_(model|neck)\..*",  # the same of the hub's
    r"vision\.blocks\.\d+\.attn\.freqs_cis.*",  # the rotation, computed again as sine and cosine
    r"vision\.(blocks\.\d+\.)?rotary_emb\..*",
    r"vision\.neck\.3\..*",  # the official program drops the coarsest level ("scalp")
    r"backbone\.vision_backbone\.sam2_convs\..*",  # the tracker's pyramid, where the rest of it is not there
    r"geometry\.points_.*",  # points as examples, which the official program has no use for
    r"text\.text_projection(\.weight)?",  # CLIP's own, of a pooled vector that is not used
    r"text\.(attn_mask|position_ids)",
    r"masks\.(convs|norms)\.2\..*",  # three steps are made and two maps are left to join
)


def find_layout(names: Mapping[str, object]) -> tuple[str, str] | None:
    """The layout of these tensors and the prefix of the detector's names in it; None if they are no SAM3."""
    for layout, signature in _SIGNATURES.items():
        for prefix in _PREFIXES:
            if prefix + signature in names:
                return layout, prefix
    return None


def to_module_names(tensors: Mapping[str, Tensor], layout: str, prefix: str) -> dict[str, Tensor]:
    """Every tensor under the module's name, or its own where the module has no such thing; packed ones are split.

    Only views are made. Raises CheckpointError for packed projections that do not divide by three.
    """
    found: dict[str, Tensor] = {}
    points = point_names(tensors, layout, prefix)
    for name, tensor in tensors.items():
        if name not in points and not name.startswith(prefix):
            found[name] = tensor
            continue
        new = points.get(name) or _layer_numbers(rename(name.removeprefix(prefix), _RULES[layout]))
        for key, value in _split(new, tensor).items():
            if key in found:
                raise CheckpointError(f"Two tensors of the checkpoint mean {key}; one of them is {name}.")
            found[key] = value
    table = found.get("vision.position")
    if layout == "official" and table is not None and table.ndim == 3:
        found["vision.position"] = table[:, 1:]  # the first is of a class token that SAM3 has not
    return split_labels(found)


def _layer_numbers(name: str) -> str:
    """transformers counts the layers of a small MLP from 1 and without a list."""
    return re.sub(r"\.layer(\d)\.", lambda match: f".layers.{int(match[1]) - 1}.", name)


def _split(name: str, tensor: Tensor) -> dict[str, Tensor]:
    match = re.fullmatch(r"(.*\.)(?:qkv\.|in_proj_)(weight|bias)", name)
    if match is None:
        return {name: tensor}
    if tensor.ndim == 0 or tensor.shape[0] % 3:
        raise CheckpointError(f"{name} has shape {tuple(tensor.shape)}, which is no query, key and value.")
    return {f"{match[1]}{letter}_proj.{match[2]}": part for letter, part in zip("qkv", tensor.chunk(3), strict=True)}
