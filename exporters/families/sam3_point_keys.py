"""What the tensors of SAM3's tracker are called that answer points on one picture; its memory of frames has no place.

Both files hold them beside the detector: `tracker.*` and a second pyramid in the picture's encoder, or
`tracker_model.*` and `tracker_neck.*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from vtk.exporters.keymap import Rules, rename

_DECODER: Rules = (
    (r"^(points\.decoder)\.obj_score_token\.", r"\1.object_token."),
    (r"^(points\.decoder)\.output_hypernetworks_mlps\.", r"\1.hyper."),
    (r"^(points\.decoder)\.iou_prediction_head\.", r"\1.iou_head."),
    (r"^(points\.decoder)\.pred_obj_score_head\.", r"\1.object_head."),
    (r"^(points\.decoder\..*)\.cross_attn_token_to_image\.", r"\1.to_image."),
    (r"^(points\.decoder\..*)\.cross_attn_image_to_token\.", r"\1.to_tokens."),
    (r"^(points\.decoder\..*)\.final_attn_token_to_image\.", r"\1.final_attn."),
    (r"\.out_proj\.", ".o_proj."),
)
_OFFICIAL: Rules = (
    (r"^tracker\.sam_prompt_encoder\.", "points.prompt."),
    (r"^points\.prompt\.pe_layer\.positional_encoding_gaussian_matrix$", "points.prompt.frequencies"),
    (r"^points\.prompt\.point_embeddings\.(\d)\.weight$", r"points.prompt.labels.\1"),
    (r"^points\.prompt\.(not_a_point|no_mask)_embed\.", r"points.prompt.\1."),
    (r"^tracker\.sam_mask_decoder\.", "points.decoder."),
    (r"^tracker\.no_mem_embed$", "points.no_memory"),
    (r"^backbone\.vision_backbone\.sam2_convs\.(\d)\.dconv_2x2(_0)?\.", r"points.neck.\1.up.0."),
    (r"^backbone\.vision_backbone\.sam2_convs\.(\d)\.dconv_2x2_1\.", r"points.neck.\1.up.1."),
    (r"^backbone\.vision_backbone\.sam2_convs\.(\d)\.conv_1x1\.", r"points.neck.\1.proj1."),
    (r"^backbone\.vision_backbone\.sam2_convs\.(\d)\.conv_3x3\.", r"points.neck.\1.proj2."),
    (r"^(points\.decoder\..*\.mlp)\.(?:lin1|layers\.0)\.", r"\1.fc1."),
    (r"^(points\.decoder\..*\.mlp)\.(?:lin2|layers\.1)\.", r"\1.fc2."),
    (r"^(points\.decoder\..*)\.norm_final_attn\.", r"\1.final_norm."),
    (r"^points\.decoder\.output_upscaling\.0\.", "points.decoder.up1."),
    (r"^points\.decoder\.output_upscaling\.1\.", "points.decoder.up_norm."),
    (r"^points\.decoder\.output_upscaling\.3\.", "points.decoder.up2."),
    *_DECODER,
)
_HF: Rules = (
    (r"^tracker_model\.shared_image_embedding\.positional_embedding$", "points.image_frequencies"),
    (r"^tracker_model\.prompt_encoder\.", "points.prompt."),
    (r"^points\.prompt\.shared_embedding\.positional_embedding$", "points.prompt.frequencies"),
    (r"^points\.prompt\.(not_a_point|no_mask)_embed\.", r"points.prompt.\1."),
    (r"^points\.prompt\.mask_embed\.", "points.prompt.mask_downscaling."),
    (r"^tracker_model\.mask_decoder\.", "points.decoder."),
    (r"^tracker_model\.no_memory_embedding$", "points.no_memory"),
    (r"^tracker_neck\.fpn_layers\.(\d)\.scale_layers\.0\.", r"points.neck.\1.up.0."),
    (r"^tracker_neck\.fpn_layers\.(\d)\.scale_layers\.2\.", r"points.neck.\1.up.1."),
    (r"^tracker_neck\.fpn_layers\.", "points.neck."),
    (r"^(points\.decoder\..*\.mlp)\.proj_in\.", r"\1.fc1."),
    (r"^(points\.decoder\..*\.mlp)\.proj_out\.", r"\1.fc2."),
    (r"^(points\.decoder\..*)\.layer_norm_final_attn\.", r"\1.final_norm."),
    (r"^(points\.decoder\..*)\.layer_norm(\d)\.", r"\1.norm\2."),
    (r"^points\.decoder\.upscale_conv(\d)\.", r"points.decoder.up\1."),
    (r"^points\.decoder\.upscale_layer_norm\.", "points.decoder.up_norm."),
    *_DECODER,
    # three layers, of which only the middle one is in a list there
    (r"^(points\.decoder\.(?:hyper\.\d+|iou_head|object_head))\.layers\.0\.", r"\1.layers.1."),
    (r"^(points\.decoder\.(?:hyper\.\d+|iou_head|object_head))\.proj_in\.", r"\1.layers.0."),
    (r"^(points\.decoder\.(?:hyper\.\d+|iou_head|object_head))\.proj_out\.", r"\1.layers.2."),
)
_RULES = {"official": _OFFICIAL, "hf": _HF}
_LABELS = "points.prompt.point_embed.weight"

# One of each group without which a point cannot be answered.
_NEEDED = frozenset(
    {
        "points.neck.0.proj1.weight",
        "points.prompt.frequencies",
        "points.decoder.mask_tokens.weight",
        "points.no_memory",
    }
)
# Names, as `point_names` gives them, of what has no effect on a picture and points.
UNUSED = (
    r"points\.neck\.3\..*",  # the official program drops the coarsest level ("scalp")
    r"points\.image_frequencies",  # a copy of the prompt's
    r"points\.prompt\.mask_downscaling\..*",  # masks as prompts
)


def point_names(names: Iterable[str], layout: str, prefix: str) -> dict[str, str]:
    """The module's name of each of the checkpoint's that the answer to points needs; none if not all of it is there."""
    renamed = {name: rename(name.removeprefix(prefix), _RULES[layout]) for name in names}
    found = {name: new for name, new in renamed.items() if new.startswith("points.")}
    return found if set(found.values()) >= _NEEDED else {}


def split_labels(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """transformers has the embeddings of all labels in one table; here each has its own, as a view of its row."""
    table = tensors.get(_LABELS)
    if table is None or table.ndim != 2:
        return dict(tensors)
    rows = {f"points.prompt.labels.{label}": table[label : label + 1] for label in range(len(table))}
    return {**{name: tensor for name, tensor in tensors.items() if name != _LABELS}, **rows}
