"""A finished job as a FiftyOne data set. Format: https://docs.voxel51.com/user_guide/using_datasets.html."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vtk.bundle import Task
from vtk.errors import MissingDependencyError, UsageError
from vtk.job_results import JobFolder, read_job
from vtk.sinks.base import Row
from vtk.sinks.crops import crop_box
from vtk.sinks.rows import masks_of

FIELD = "predictions"


def export_fiftyone(job: Path, name: str | None = None) -> Any:
    """A new `fiftyone.Dataset` called `name` with one sample per result of the job in that folder.

    `predictions` of a sample holds Detections, with masks where the model makes them, or Classifications. Raises
    MissingDependencyError without fiftyone, UsageError for a folder without such a job.
    """
    folder = read_job(job)
    if folder.task == "embed":
        raise UsageError(f"{job} holds embeddings, which have no labels to show.")
    try:
        import fiftyone
    except ImportError:
        raise MissingDependencyError("fiftyone", needed_for="export_fiftyone", extra="fiftyone") from None
    dataset = fiftyone.Dataset(name)
    dataset.add_samples(_samples(fiftyone, folder))
    return dataset


def _samples(fiftyone: Any, folder: JobFolder) -> Iterator[Any]:
    for row in folder.rows():
        sample = fiftyone.Sample(
            filepath=str(Path(row["path"]).absolute()),
            metadata=fiftyone.ImageMetadata(width=row["width"], height=row["height"]),
        )
        sample[FIELD] = _label(fiftyone, row, folder.task)
        yield sample


def _label(fiftyone: Any, row: Row, task: Task) -> Any:
    if task == "classify":
        found = [fiftyone.Classification(label=item["name"], confidence=item["score"]) for item in row["classes"]]
        return fiftyone.Classifications(classifications=found)
    values = _masked(row) if task == "segment" else _boxed(row)
    return fiftyone.Detections(detections=[fiftyone.Detection(**value) for value in values])


def _boxed(row: Row) -> Iterator[dict[str, Any]]:
    for item in row["detections"]:
        yield {
            "label": item["name"],
            "confidence": item["score"],
            "bounding_box": _fractions(item["bbox_xyxy"], row),
        }


def _masked(row: Row) -> Iterator[dict[str, Any]]:
    """The box is rounded outward to whole pixels, of which the mask has one value each; what lies beyond it is cut."""
    masks = masks_of(row)
    for index, value in enumerate(_boxed(row)):
        xyxy = row["detections"][index]["bbox_xyxy"]
        left, top, right, bottom = crop_box(xyxy, (row["width"], row["height"]))
        box = _fractions((left, top, right, bottom), row)
        yield {**value, "bounding_box": box, "mask": masks[index][top:bottom, left:right]}


def _fractions(xyxy: Sequence[float], row: Row) -> list[float]:
    """x, y, width, height in fractions of the picture."""
    left, top, right, bottom = xyxy
    width, height = row["width"], row["height"]
    return [left / width, top / height, (right - left) / width, (bottom - top) / height]
