"""A bundle as a step of a Ray Data pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from ray.data import ActorPoolStrategy, Dataset

from vtk.api import Model, load
from vtk.errors import ImageError, UsageError
from vtk.postprocess.results import Detections, Embeddings, Result

_BOX = pa.list_(pa.float32(), 4)
_CLASSES = {"scores": pa.list_(pa.float32()), "class_ids": pa.list_(pa.int64()), "names": pa.list_(pa.string())}
_COLUMNS = {
    "detect": {"boxes_xyxy": pa.list_(_BOX), **_CLASSES},
    "classify": _CLASSES,
    "embed": {"pooled": pa.list_(pa.float32())},
}


def map_batches(
    dataset: Dataset,
    bundle: Path | str,
    *,
    column: str = "path",
    workers: int = 2,
    batch_size: int = 32,
    backend: str = "auto",
    device: str = "auto",
    num_cpus: float = 1,
    num_gpus: float = 0,
) -> Dataset:
    """The dataset with the results of a bundle added to each row.

    column: holds paths, or the bytes of pictures. batch_size: rows per call of a worker. num_cpus, num_gpus: what Ray
    reserves for each of the `workers`. New columns: detection `boxes_xyxy` (pixels of the upright picture), `scores`,
    `class_ids`, `names`; classes the last three; embedding `pooled`; and always `error`: null, or why a picture has no
    result (then the others are null). A bad picture costs no other one its result.
    """
    return dataset.map_batches(
        Answers,
        fn_constructor_args=(str(bundle), column, backend, device),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(size=workers),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )


class Answers:
    """One worker: an open bundle that adds its columns to a table."""

    def __init__(self, bundle: str, column: str, backend: str, device: str) -> None:
        """Raises UsageError for a bundle whose results have no columns here, and the errors of `load`."""
        self._model = load(bundle, backend=backend, device=device)
        self._column = column
        if self._model.task not in _COLUMNS:
            raise UsageError(f"A bundle of task '{self._model.task}' cannot be a step of a dataset.")

    def __call__(self, table: pa.Table) -> pa.Table:
        if self._column not in table.column_names:
            raise UsageError(f"The dataset has no column '{self._column}'; it has {', '.join(table.column_names)}.")
        answers = [_answer(self._model, picture) for picture in table.column(self._column).to_pylist()]
        results = [answer if not isinstance(answer, str) else None for answer in answers]
        for name, kind in _COLUMNS[self._model.task].items():
            values = [None if result is None else self._value(result, name) for result in results]
            table = table.append_column(name, pa.array(values, kind))
        errors = [answer if isinstance(answer, str) else None for answer in answers]
        return table.append_column("error", pa.array(errors, pa.string()))

    def _value(self, result: Result, name: str) -> Any:
        if isinstance(result, Embeddings):
            return result.pooled
        if name == "names":
            return [self._model.labels[index].name for index in result.class_ids]
        if name == "boxes_xyxy":
            assert isinstance(result, Detections)
            return list(result.xyxy)
        return result.scores if name == "scores" else result.class_ids


def _answer(model: Model, picture: Any) -> Result | str:
    if not isinstance(picture, (str, bytes)):
        return f"expected a path or bytes, got {type(picture).__name__}"
    try:
        return model(picture)
    except ImageError as error:
        return f"{error.reason}: {error.message}"
