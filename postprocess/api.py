"""The one way from raw outputs to a result: the recipe says which, `run`, `serve`, `verify` and `bench` call this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vtk.errors import UsageError
from vtk.postprocess import yolo
from vtk.postprocess.classify import LOGITS, classification
from vtk.postprocess.detr import detr_detections
from vtk.postprocess.embed import embeddings
from vtk.postprocess.raw import RawOutputs
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Result
from vtk.postprocess.segment import segment_detections

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry


def num_classes(recipe: PostRecipe, shapes: Mapping[str, Sequence[int]]) -> int | None:
    """How many classes outputs of these shapes (batch first) tell apart; None where there are no fixed classes."""
    if recipe.kind == "yolo":
        return shapes[yolo.OUTPUT][1] - 4 if yolo.OUTPUT in shapes else None
    return shapes[LOGITS][-1] if recipe.kind in ("detr", "classify") and LOGITS in shapes else None


def postprocess(
    outputs: RawOutputs,
    geometry: Geometry,
    recipe: PostRecipe,
    *,
    class_filter: frozenset[int] | None = None,
    grid_hw: tuple[int, int] | None = None,
) -> Result:
    """Outputs of ONE picture (no batch dimension), by name, to its result in source pixels.

    Names: detr `logits`, `boxes`; yolo `output0`; embed `cls` and perhaps `patches` (then `grid_hw` is the
    patch grid); classify `logits`; segment `masks`, `boxes_xyxy`, `logits`, `presence`. class_filter: class indices to
    report, None for all. Raises BackendError for an output that is missing, misshapen or not finite, and UsageError for
    a filter that cannot be applied.
    """
    source_h, source_w = geometry.source_hw
    if recipe.kind == "detr":
        return detr_detections(outputs, geometry, recipe, class_filter)
    if recipe.kind == "yolo":
        return yolo.yolo_detections(outputs, geometry, recipe, class_filter)
    if recipe.kind == "segment":
        return segment_detections(outputs, geometry, recipe, class_filter)
    if recipe.kind == "classify":
        return classification(outputs, (source_w, source_h), recipe, class_filter)
    if class_filter is not None:
        raise UsageError("A class filter was given, but this model makes embeddings, which have no classes.")
    return embeddings(outputs, (source_w, source_h), grid_hw)
