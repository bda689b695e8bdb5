"""The canonical row of a picture: one JSON object, from which the other formats of a task are derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.bundle import Label, Task
from vtk.errors import BackendError
from vtk.items import Item
from vtk.naming import utf8
from vtk.postprocess.masks import Masks
from vtk.postprocess.results import Classification, Detections, Embeddings, Result
from vtk.sinks.base import Row


def to_row(
    item: Item, result: Result, *, sha256: str, labels: tuple[Label, ...], extra: Mapping[str, Any] | None = None
) -> Row:
    """The row of one result. `sha256` is of the picture's file; boxes are upright pixels, xyxy, not clipped.

    extra: what the picture's source knows of it, say `key`, `id`, `frame` and `time_s`.
    Raises BackendError when the result holds a number that is not finite.
    """
    width, height = result.resolution_wh
    return {
        "index": item.index,
        "path": utf8(item.path),
        "file_name": utf8(item.file_name),
        "output": utf8(item.output),
        "sha256": sha256,
        "width": width,
        "height": height,
        **(extra or {}),
        **values_of(result, labels),
    }


def values_of(result: Result, labels: tuple[Label, ...]) -> Row:
    """What a result says, without the picture it is of: `detections`, `classes`, or `dim` and `grid_hw`.

    A detection with a mask has it as `segmentation`, the run lengths of COCO: `size` [height, width] and `counts`.
    Raises BackendError when a number is not finite.
    """
    if isinstance(result, Embeddings):
        _check_finite(result.pooled)
        if result.patches is not None:
            _check_finite(result.patches)
        grid = None if result.patches is None else list(result.patches.shape[:2])
        return {"dim": len(result.pooled), "grid_hw": grid}
    _check_finite(result.scores)
    classes = [_class(int(index), labels) for index in result.class_ids]
    scores = decimals(result.scores)
    if isinstance(result, Classification):
        return {"classes": [{**name, "score": score} for name, score in zip(classes, scores, strict=True)]}
    return {"detections": _detections(result, classes, scores)}


def _detections(result: Detections, classes: list[Row], scores: list[float]) -> list[Row]:
    _check_finite(result.xyxy)
    boxes = [decimals(box) for box in result.xyxy]
    rows = [{**name, "score": score, "bbox_xyxy": box} for name, score, box in zip(classes, scores, boxes, strict=True)]
    if result.masks is None:
        return rows
    return [{**row, "segmentation": result.masks.to_coco(index)} for index, row in enumerate(rows)]


def result_of(row: Row, task: Task) -> Detections | Classification:
    """The value a row of this task was made of, without loss; embeddings are not in rows."""
    size = (int(row["width"]), int(row["height"]))
    found = row["classes" if task == "classify" else "detections"]
    class_ids = np.array([item["class_id"] for item in found], np.int64)
    scores = np.array([item["score"] for item in found], np.float32)
    if task == "classify":
        return Classification(class_ids, scores, size)
    boxes = np.array([item["bbox_xyxy"] for item in found], np.float32).reshape(-1, 4)
    return Detections(boxes, scores, class_ids, size, masks_of(row) if task == "segment" else None)


def masks_of(row: Row) -> Masks:
    """The masks of a row whose detections have them."""
    rle = tuple(item["segmentation"]["counts"].encode("ascii") for item in row["detections"])
    return Masks(rle, (int(row["width"]), int(row["height"])))


def _class(index: int, labels: tuple[Label, ...]) -> Row:
    label = labels[index]
    return {"class_id": index, "category_id": label.category_id, "name": label.name}


def decimals(values: npt.NDArray[np.float32]) -> list[float]:
    """The shortest decimals that read back as the same float32."""
    return [float(str(value)) for value in values]


def _check_finite(values: npt.NDArray[np.float32]) -> None:
    if not np.isfinite(values).all():
        raise BackendError("The engine returned numbers that are not finite.")
