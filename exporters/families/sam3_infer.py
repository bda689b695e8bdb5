"""The numbers of a SAM3 from its tensors, and from a config.json where no tensor tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vtk.errors import AmbiguousError, CheckpointError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.checkpoint_json import read_json
from vtk.exporters.modules.dino_keys import axis, count_blocks
from vtk.exporters.modules.sam3_config import Sam3Config, Sam3PointConfig, Sam3TextConfig, Sam3VisionConfig

_CONFIG = "config.json"
_FULL_DEPTH, _FULL_GLOBAL = 32, (7, 15, 23, 31)
_FULL_GRID, _FULL_SIDE = 72, 24
# Of the released model, in both encoders.
_HEAD_WIDTH = 64
# Eight groups are normalized together, and a position takes four features.
_WIDTH_MULTIPLE = 8
# Of the released tracker.
_POINT_WIDTH, _POINT_HEADS = 256, 8


def stated_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The `Sam3Config` of transformers in the folder, or beside the weight file if it is a SAM3's; else nothing."""
    config = _whole_config(checkpoint)
    inner = config.get("detector_config")
    return inner if isinstance(inner, Mapping) else config


def _tracker_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    inner = _whole_config(checkpoint).get("tracker_config")
    return inner if isinstance(inner, Mapping) else {}


def _whole_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    config = checkpoint.metadata.get("config")
    beside = checkpoint.path.parent / _CONFIG
    if config is None and checkpoint.path.is_file() and beside.is_file():
        config = read_json(beside)
    is_sam3 = isinstance(config, Mapping) and str(config.get("model_type", "")).startswith("sam3")
    return config if isinstance(config, Mapping) and is_sam3 else {}


def infer_config(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Sam3Config:
    """`tensors` under the module's names. Raises CheckpointError and AmbiguousError."""
    stated = _Stated(stated_config(checkpoint), checkpoint.path.name)
    tracker = _Stated(_tracker_config(checkpoint), checkpoint.path.name)
    vision = _vision(tensors, stated)
    config = Sam3Config(
        vision=vision,
        text=_text(tensors, stated),
        dim=axis(tensors, "decoder.query_embed.weight", 1),
        heads=axis(tensors, "decoder.rpb_x.layers.1.weight", 0),
        queries=axis(tensors, "decoder.query_embed.weight", 0),
        grid=_grid(tensors, vision, stated),
        roi=axis(tensors, "geometry.boxes_pool_project.weight", -1),
        geometry_depth=count_blocks(tensors, r"geometry\.layers\.(\d+)\."),
        geometry_ffn=axis(tensors, "geometry.layers.0.mlp.fc1.weight", 0),
        encoder_depth=count_blocks(tensors, r"encoder\.layers\.(\d+)\."),
        encoder_ffn=axis(tensors, "encoder.layers.0.mlp.fc1.weight", 0),
        decoder_depth=count_blocks(tensors, r"decoder\.layers\.(\d+)\."),
        decoder_ffn=axis(tensors, "decoder.layers.0.mlp.fc1.weight", 0),
        scoring_ffn=axis(tensors, "scoring.prompt_mlp.layers.0.weight", 0),
        point_prompts=_points(tensors, tracker) if "points.no_memory" in tensors else None,
    )
    _check(config, stated)
    return config


def _check(config: Sam3Config, stated: _Stated) -> None:
    vision, text = config.vision, config.text
    for what, width, heads in (("picture", vision.dim, vision.heads), ("text", text.dim, text.heads)):
        if width % heads:
            raise CheckpointError(f"{stated.source}: the {what}, {width} wide, cannot be split into {heads} heads.")
    if config.dim % config.heads or config.dim % _WIDTH_MULTIPLE or (vision.dim // vision.heads) % 4:
        raise CheckpointError(
            f"{stated.source}: a detector {config.dim} wide with {config.heads} heads, on heads of "
            f"{vision.dim // vision.heads}, is no SAM3."
        )
    if config.grid < vision.window or config.grid % vision.window:
        raise CheckpointError(
            f"{stated.source}: {config.grid} patches on a side do not divide into windows of {vision.window}."
        )


class _Stated:
    """Numbers out of a config.json; None where it has none."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self.config, self.source = config, source

    def value(self, *path: str) -> Any:
        node: Any = self.config
        for step in path:
            node = node.get(step) if isinstance(node, Mapping) else None
        return node

    def integer(self, *path: str) -> int | None:
        value = self.value(*path)
        if value is None or (type(value) is int and 0 < value < 1 << 20):
            return value
        raise CheckpointError(f"{self.source}: {'.'.join(path)} is {value!r} in {_CONFIG}; expected a whole number.")

    def missing(self, what: str) -> AmbiguousError:
        return AmbiguousError(
            f"{self.source}: no tensor tells {what} of this SAM3, which is none of the released sizes.",
            hint=f"Put its {_CONFIG} (of transformers' Sam3Config) beside the weights.",
        )


def _vision(tensors: Mapping[str, Tensor], stated: _Stated) -> Sam3VisionConfig:
    path = ("vision_config", "backbone_config")
    dim, depth = axis(tensors, "vision.norm_pre.weight", 0), count_blocks(tensors, r"vision\.blocks\.(\d+)\.")
    side = int(axis(tensors, "vision.position", 1) ** 0.5)
    rope = _table(tensors, 0)
    heads = stated.integer(*path, "num_attention_heads") or (
        dim // (2 * rope[1]) if rope else _default_heads(dim, "the heads of the picture", stated)
    )
    window = stated.integer(*path, "window_size") or side
    if heads < 1 or side * side != axis(tensors, "vision.position", 1):
        raise CheckpointError(f"{stated.source}: {heads} heads and a table of side {side} make no SAM3.")
    theta = stated.value(*path, "rope_parameters", "rope_theta")
    return Sam3VisionConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        ffn=axis(tensors, "vision.blocks.0.mlp.fc1.weight", 0),
        patch=axis(tensors, "vision.patch_embed.weight", -1),
        side=side,
        window=window,
        global_blocks=_global_blocks(tensors, depth, window, stated),
        rope_theta=float(theta) if isinstance(theta, (int, float)) and theta > 0 else 10000.0,
    )


def _global_blocks(tensors: Mapping[str, Tensor], depth: int, window: int, stated: _Stated) -> tuple[int, ...]:
    listed = stated.value("vision_config", "backbone_config", "global_attn_indexes")
    if isinstance(listed, list) and all(type(index) is int and 0 <= index < depth for index in listed):
        return tuple(listed)
    rows = [table[0] for index in range(depth) if (table := _table(tensors, index))]
    if len(rows) == depth:
        return tuple(index for index, count in enumerate(rows) if count != window**2)
    if depth == _FULL_DEPTH:
        return _FULL_GLOBAL
    raise stated.missing("the blocks with global attention")


def _grid(tensors: Mapping[str, Tensor], vision: Sam3VisionConfig, stated: _Stated) -> int:
    size = stated.integer("vision_config", "backbone_config", "image_size")
    if size is not None:
        return size // vision.patch
    table = _table(tensors, vision.global_blocks[0]) if vision.global_blocks else None
    if table is not None:
        return int(table[0] ** 0.5)
    if vision.side == _FULL_SIDE:
        return _FULL_GRID
    raise stated.missing("the input size")


def _table(tensors: Mapping[str, Tensor], block: int) -> tuple[int, int] | None:
    """Positions and pairs in the official file's rotation table of one block, where it has one."""
    table = tensors.get(f"vision.blocks.{block}.attn.freqs_cis")
    return (table.shape[0], table.shape[1]) if table is not None and table.ndim == 2 and table.numel() else None


def _text(tensors: Mapping[str, Tensor], stated: _Stated) -> Sam3TextConfig:
    dim = axis(tensors, "text.norm.weight", 0)
    heads = stated.integer("text_config", "num_attention_heads") or _default_heads(dim, "the heads of the text", stated)
    return Sam3TextConfig(
        dim=dim,
        depth=count_blocks(tensors, r"text\.layers\.(\d+)\."),
        heads=heads,
        ffn=axis(tensors, "text.layers.0.mlp.fc1.weight", 0),
        context=axis(tensors, "text.position", 0),
        vocabulary=axis(tensors, "text.token_embedding.weight", 0),
    )


def _default_heads(dim: int, what: str, stated: _Stated) -> int:
    if dim % _HEAD_WIDTH or dim < 8 * _HEAD_WIDTH:
        raise stated.missing(what)
    return dim // _HEAD_WIDTH


def _points(tensors: Mapping[str, Tensor], stated: _Stated) -> Sam3PointConfig:
    decoder = "points.decoder"
    dim, inner = (axis(tensors, f"{decoder}.transformer.final_attn.q_proj.weight", place) for place in (1, 0))
    heads = stated.integer("mask_decoder_config", "num_attention_heads")
    if heads is None and dim != _POINT_WIDTH:
        raise stated.missing("the heads of the tracker")
    heads = heads or _POINT_HEADS
    if dim % heads or inner % heads or dim % _WIDTH_MULTIPLE:
        raise CheckpointError(f"{stated.source}: a tracker {dim} and {inner} wide with {heads} heads is no SAM3's.")
    return Sam3PointConfig(
        dim=dim,
        heads=heads,
        inner=inner,
        depth=count_blocks(tensors, r"points\.decoder\.transformer\.layers\.(\d+)\."),
        ffn=axis(tensors, f"{decoder}.transformer.layers.0.mlp.fc1.weight", 0),
        masks=axis(tensors, f"{decoder}.mask_tokens.weight", 0),
        iou_hidden=axis(tensors, f"{decoder}.iou_head.layers.0.weight", 0),
    )
