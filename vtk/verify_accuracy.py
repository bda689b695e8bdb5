"""Accuracy of a detector before and after its export, on pictures whose objects are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vtk.average_precision import Truth, average_precision
from vtk.bundle import Bundle, Label
from vtk.errors import InputError, UsageError
from vtk.postprocess.results import Detections, Result
from vtk.predictor import Predictor
from vtk.preprocess.resize import RGBImage
from vtk.verify_limits import limits_of
from vtk.verify_report import Check
from vtk.verify_stages import ReferenceRows

# What evaluations keep of detectors with non-maximum suppression; below it there are thousands of boxes.
MIN_SCORE_YOLO = 0.001


class Accuracy:
    """Collects results of the source model and of every batch size, picture by picture, and compares their AP."""

    def __init__(self, bundle: Bundle, predictor: Predictor, annotations: Path, reference: ReferenceRows) -> None:
        """Raises UsageError for another task, InputError for annotations that cannot be read or fit no label."""
        manifest = bundle.manifest
        if manifest.task != "detect":
            raise UsageError("--annotations are for detectors.", hint="Leave out --annotations.")
        self._truths = read_annotations(annotations, manifest.labels)
        self._limits = limits_of(manifest)
        self._predictor = predictor
        self._reference = reference
        floor = MIN_SCORE_YOLO if manifest.post.kind == "yolo" else 0.0
        self._post = replace(manifest.post, score_threshold=floor)
        self._names: list[str] = []
        self._found: dict[str, list[Detections]] = {}

    def add(self, pictures: Sequence[tuple[str, RGBImage]]) -> None:
        """Run the pictures. Raises InputError for one that the annotations do not know."""
        if unknown := [name for name, _ in pictures if name not in self._truths]:
            raise InputError(
                f"The annotations say nothing about {unknown[0]}.", hint="Pass the folder that they are of."
            )
        self._names += [name for name, _ in pictures]
        prepared = [self._predictor.prepare(picture) for _, picture in pictures]
        tensors = [item.tensor for item in prepared]
        rows = {"source": self._reference(tensors)}
        for batch in self._predictor.batch_sizes:
            rows[f"batch {batch}"] = [
                row
                for start in range(0, len(tensors), batch)
                for row in self._predictor.infer_batch(batch, tensors[start : start + batch])
            ]
        for name, outputs in rows.items():
            pairs = zip(outputs, prepared, strict=True)
            results = [self._predictor.finish(row, item.geometry, post=self._post) for row, item in pairs]
            self._found.setdefault(name, []).extend(_detections(results))

    def checks(self) -> list[Check]:
        """AP of both side by side, and what is lost, for each batch size."""
        truths = [self._truths[name] for name in self._names]
        levels = {name: average_precision(truths, found) for name, found in self._found.items()}
        source = levels.pop("source")
        checks: list[Check] = []
        for name, came in levels.items():
            for what, pick in (("AP", slice(None)), ("AP50", slice(0, 1)), ("AP75", slice(5, 6))):
                before, after = float(source[pick].mean()), float(came[pick].mean())
                detail = f"source {before:.4f}, artifact {after:.4f}, {len(truths)} pictures"
                checks.append(Check("accuracy", f"{name}: {what} lost", before - after, self._limits.ap_loss, detail))
        return checks


def read_annotations(path: Path, labels: Sequence[Label]) -> dict[str, Truth]:
    """COCO annotations by file name; classes are the indices of `labels`, found by their category id.

    Raises InputError for a file that is none, or for a category that no label has.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        names = {image["id"]: str(image["file_name"]) for image in data["images"]}
        by_name: dict[str, list[Mapping[str, Any]]] = {name: [] for name in names.values()}
        for item in data["annotations"]:
            by_name[names[item["image_id"]]].append(item)
        indices = {label.category_id: index for index, label in enumerate(labels)}
        return {name: _truth(items, indices) for name, items in by_name.items()}
    except OSError as error:
        raise InputError(f"The annotations {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"The annotations {path} are not COCO detections of the bundle's labels: {type(error).__name__}: {error}.",
            hint="Expected images (id, file_name) and annotations (image_id, category_id, bbox).",
        ) from error


def _truth(items: Sequence[Mapping[str, Any]], indices: Mapping[int, int]) -> Truth:
    boxes = np.array([item["bbox"] for item in items], np.float64).reshape(-1, 4)
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    classes = np.array([indices[item["category_id"]] for item in items], np.int64)
    return Truth(corners, classes, np.array([bool(item.get("iscrowd", 0)) for item in items], np.bool_))


def _detections(results: Sequence[Result]) -> list[Detections]:
    return [result for result in results if isinstance(result, Detections)]
