"""Results as JSON and back, without loss for what a result holds except dense features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.postprocess.masks import Masks
from vtk.postprocess.results import Classification, Detections, Embeddings, Result


def result_to_json(result: Result) -> dict[str, Any]:
    """`type` and the fields as lists; float32 values survive exactly, masks are packed run lengths.

    Dense features are left out: they are big.
    """
    size = {"resolution_wh": list(result.resolution_wh)}
    if isinstance(result, Detections):
        arrays = {"xyxy": result.xyxy, "scores": result.scores, "class_ids": result.class_ids}
        masks = {} if result.masks is None else {"masks": [data.decode("ascii") for data in result.masks.rle]}
        return {"type": "detections", **_lists(arrays), **masks, **size}
    if isinstance(result, Embeddings):
        return {"type": "embeddings", **_lists({"pooled": result.pooled}), **size}
    return {"type": "classification", **_lists({"class_ids": result.class_ids, "scores": result.scores}), **size}


def result_from_json(data: Mapping[str, Any]) -> Result:
    """The inverse. Raises KeyError, TypeError, AttributeError, OverflowError or ValueError for other data."""
    width, height = data["resolution_wh"]
    size = (int(width), int(height))
    if data["type"] == "embeddings":
        return Embeddings(_finite(data["pooled"]), None, size)
    scores = _finite(data["scores"])
    class_ids = np.array(data["class_ids"], np.int64)
    if data["type"] == "classification":
        return Classification(class_ids, scores, size)
    if data["type"] == "detections":
        masks = Masks(tuple(item.encode("ascii") for item in data["masks"]), size) if "masks" in data else None
        return Detections(_finite(data["xyxy"]).reshape(-1, 4), scores, class_ids, size, masks)
    raise ValueError(f"unknown result type {data['type']!r}")


def _finite(values: Any) -> npt.NDArray[np.float32]:
    array = np.array(values, np.float32)
    if not np.isfinite(array).all():
        raise ValueError("a number of a result is not finite")
    return array


def _lists(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: array.tolist() for name, array in arrays.items()}
