"""One record to write, made without a pipeline."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vtk.bundle import Label
from vtk.items import Item
from vtk.postprocess.results import Detections, Result
from vtk.sinks.base import Record
from vtk.sinks.rows import to_row

LABELS = (Label(1, "person"), Label(3, "car"), Label(90, "Zahnbürste"))

MakeRecord = Callable[..., Record]


@pytest.fixture
def labels() -> tuple[Label, ...]:
    return LABELS


@pytest.fixture
def make_record() -> MakeRecord:
    def make(result: Result, *, index: int = 0, path: Path = Path("in/a.jpg"), output: str = "a") -> Record:
        item = Item(index, str(path), path.name, output)
        return Record(item, to_row(item, result, sha256=f"{index:064}", labels=LABELS), result)

    return make


@pytest.fixture
def found() -> Detections:
    """Two boxes in a picture of 200 x 100, one of which leaves it on all four sides."""
    boxes = np.array([[10, 20, 50.5, 80], [-5, -4, 210, 103]], np.float32)
    return Detections(boxes, np.array([0.9, 0.3], np.float32), np.array([2, 0]), (200, 100))


@pytest.fixture
def nothing() -> Detections:
    return Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64), (200, 100))
