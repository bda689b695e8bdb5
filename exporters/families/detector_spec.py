"""What a bundle says of every DETR-like detector in the same way: outputs, results, islands, COCO's category ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtk.exporters.families.coco import COCO_CATEGORY_IDS, COCO_NAMES
from vtk.exporters.family import Choice, ModelSpec, OutputSpec
from vtk.postprocess.detr import BOXES, LOGITS
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

MAX_DETECTIONS = 300
FP32_ISLANDS = ("layer_norm", "attention_scores", "softmax", "query_selection", "sampling_locations", "box_refinement")


def detector_spec(
    family: str,
    *,
    variant: str,
    layout: str,
    config: Mapping[str, Any],
    recipe: Recipe,
    queries: int,
    classes: int,
    names: tuple[str, ...] | None,
    choices: tuple[Choice, ...],
    fp32_islands: tuple[str, ...] = FP32_ISLANDS,
    max_detections: int = MAX_DETECTIONS,
) -> ModelSpec:
    """The spec of a detector whose outputs are logits and boxes of `queries`."""
    return ModelSpec(
        family=family,
        variant=variant,
        layout=layout,
        task="detect",
        config=config,
        input_hw=recipe.size_hw,
        recipe=recipe,
        post=PostRecipe(kind="detr", max_detections=min(max_detections, queries * classes)),
        outputs=(OutputSpec(LOGITS, "logits", 1e-3), OutputSpec(BOXES, "boxes_cxcywh", 1e-4)),
        num_classes=classes,
        class_names=names,
        choices=choices,
        fp32_islands=fp32_islands,
        extras={"category_ids": COCO_CATEGORY_IDS} if names == COCO_NAMES else {},
    )
