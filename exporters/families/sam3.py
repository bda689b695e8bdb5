"""SAM3 (Carion et al. 2025), the image model: text, box and point prompts, in the official and Hugging Face layouts.

Source: facebookresearch/sam3, whose results are the reference also for files in the other layout. Points are answered
by the tracker of the same files, where they hold it; its memory, to follow objects through a video, is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.sam3_infer import infer_config
from vtk.exporters.families.sam3_keys import UNUSED, find_layout, to_module_names
from vtk.exporters.family import Family, FamilyOptions, ModelSpec, OutputSpec, PartSpec, TensorShape
from vtk.exporters.modules.dino_keys import on_meta
from vtk.exporters.modules.sam3 import Sam3, Sam3Detector
from vtk.exporters.modules.sam3_config import Sam3Config
from vtk.exporters.modules.sam3_points import Sam3PointDecoder
from vtk.exporters.modules.sam3_text import Sam3TextEncoder
from vtk.exporters.modules.sam3_vision import Sam3ImageEncoder
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

_HALF = (0.5, 0.5, 0.5)
_FULL_WIDTH = 1024
# sam3/model/sam3_image_processor.py; transformers' default is 0.3.
SCORE_THRESHOLD = 0.5
# A tenth of a pixel at 1008: six refinements at full size, on random weights, end 5e-5 apart on two runtimes.
BOX_ATOL = 1e-4


class SAM3(Family):
    """Three graphs: picture, prompt, and what finds one in the other; with the tracker, one more for points."""

    name = "sam3"
    title = "SAM3"
    layouts = ("official", "hf")
    unused = UNUSED
    exact = True
    builds_on_meta = True

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        found = find_layout(checkpoint.tensors)
        return None if found is None else found[0]

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        config = infer_config(checkpoint, _named(checkpoint, on_meta(checkpoint.tensors)))
        _check_size(config, options)
        size = (config.size, config.size)
        parts = _parts(config)
        return ModelSpec(
            family=self.name,
            variant="image" if config.vision.dim == _FULL_WIDTH else "custom",
            layout=layout,
            task="segment",
            config={**config.to_mapping(), "context_length": config.text.context, **_slots(config)},
            input_hw=size,
            recipe=Recipe(size, mean=_HALF, std=_HALF),
            post=PostRecipe("segment", score_threshold=SCORE_THRESHOLD, max_detections=config.queries),
            outputs=parts[-1].outputs,
            parts=parts,
            fp32_islands=("layer_norm", "attention_scores", "softmax", "rope", "box_refinement"),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Tensor]:
        tensors = _named(checkpoint, checkpoint.tensors)
        frequencies, copy = tensors.get("points.prompt.frequencies"), tensors.get("points.image_frequencies")
        if frequencies is not None and copy is not None and not torch.equal(frequencies, copy):
            raise CheckpointError(f"{checkpoint.path.name}: its tracker places points and pixels by different tables.")
        return tensors

    def build(self, spec: ModelSpec) -> nn.Module:
        return Sam3(Sam3Config.from_mapping(spec.config)).eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        assert isinstance(module, Sam3)
        config = Sam3Config.from_mapping(spec.config)
        parts: dict[str, nn.Module] = {
            "image_encoder": Sam3ImageEncoder(module.vision, config, module.points),
            "text_encoder": Sam3TextEncoder(module.text),
            "decoder": Sam3Detector(module, config),
        }
        if module.points is not None:
            parts["point_decoder"] = Sam3PointDecoder(module.points, config)
        return nn.ModuleDict(parts).eval()


def _named(checkpoint: Checkpoint, tensors: Any) -> dict[str, Tensor]:
    found = find_layout(tensors)
    if found is None:
        raise CheckpointError(f"{checkpoint.path.name} is no SAM3.")
    return to_module_names(tensors, *found)


def _check_size(config: Sam3Config, options: FamilyOptions) -> None:
    if options.size_hw not in (None, (config.size, config.size)):
        raise UsageError(
            f"This SAM3 takes pictures of {config.size}x{config.size} only: the range of its positions is trained.",
            hint="Leave out --size.",
        )


def _slots(config: Sam3Config) -> dict[str, int]:
    return {} if config.point_prompts is None else {"point_slots": config.point_prompts.slots}


def _parts(config: Sam3Config) -> tuple[PartSpec, ...]:
    """Names, shapes and limits of the graphs; limits hold for float32 on another backend."""
    maps, point_maps = _maps(config)
    encoder = PartSpec(
        "image_encoder",
        inputs=(TensorShape("images", (1, 3, config.size, config.size)),),
        outputs=tuple(OutputSpec(item.name, "features", 1e-4) for item in (*maps, *point_maps)),
        batched=True,
    )
    points = () if config.point_prompts is None else (_point_part(point_maps, config.point_prompts.slots),)
    return (encoder, *points, *_text_parts(config, maps))


def _maps(config: Sam3Config) -> tuple[tuple[TensorShape, ...], tuple[TensorShape, ...]]:
    """What the decoder and the point decoder take of a picture."""
    sides = (4 * config.grid, 2 * config.grid, config.grid)
    maps = tuple(TensorShape(f"fpn_{level}", (1, config.dim, side, side)) for level, side in enumerate(sides))
    if config.point_prompts is None:
        return maps, ()
    widths = (config.point_prompts.dim // share for share in (8, 4, 1))
    named = enumerate(zip(widths, sides, strict=True))
    return maps, tuple(TensorShape(f"point_fpn_{level}", (1, width, side, side)) for level, (width, side) in named)


def _point_part(maps: tuple[TensorShape, ...], slots: int) -> PartSpec:
    return PartSpec(
        "point_decoder",
        inputs=(*maps, TensorShape("points", (1, slots, 2)), TensorShape("point_labels", (1, slots), "int64")),
        outputs=(
            OutputSpec("point_masks", "masks", 5e-4),
            OutputSpec("point_ious", "logits", 5e-5),
            OutputSpec("point_object", "logits", 5e-5),
        ),
    )


def _text_parts(config: Sam3Config, maps: tuple[TensorShape, ...]) -> tuple[PartSpec, ...]:
    dim, tokens, slots = config.dim, config.text.context, config.box_slots
    mask = TensorShape("attention_mask", (1, tokens), "int64")
    return (
        PartSpec(
            "text_encoder",
            inputs=(TensorShape("input_ids", (1, tokens), "int64"), mask),
            outputs=(OutputSpec("text_features", "features", 1e-4),),
        ),
        PartSpec(
            "decoder",
            inputs=(
                *maps,
                TensorShape("text_features", (1, tokens, dim)),
                mask,
                TensorShape("boxes", (1, slots, 4)),
                TensorShape("box_labels", (1, slots), "int64"),
            ),
            outputs=(
                OutputSpec("masks", "masks", 5e-4),
                OutputSpec("boxes_xyxy", "boxes_xyxy", BOX_ATOL),
                OutputSpec("logits", "logits", 5e-5),
                OutputSpec("presence", "logits", 5e-5),
                OutputSpec("semantic", "features", 5e-4),
            ),
        ),
    )
