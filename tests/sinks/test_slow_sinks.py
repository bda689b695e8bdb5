"""Slow writers hold the pipeline back instead of filling memory (case V56)."""

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from vtk.inputs import expand
from vtk.jobs import open_job
from vtk.pipeline import Pipeline
from vtk.sinks.base import Record, Sink

NUM_PICTURES = 120


class Slow(Sink):
    """Takes its time, and counts the pictures that are alive meanwhile."""

    wants_picture = True

    def __init__(self, *, in_commit: bool) -> None:
        self.in_commit = in_commit
        self.pictures: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.most = 0
        self.order: list[int] = []
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        assert record.picture is not None
        assert record.encoded is not None
        with self._lock:
            self.pictures[record.item.index] = record.picture
            self.most = max(self.most, len(self.pictures))
        if not self.in_commit:
            time.sleep(0.003)

    def commit(self, record: Record) -> None:
        self.order.append(record.item.index)
        if self.in_commit:
            time.sleep(0.003)


def test_pictures_wait_in_the_slots_and_nowhere_else(
    stub: ModuleType, tmp_path: Path, save_picture: Callable[..., Path]
) -> None:
    for index in range(NUM_PICTURES):
        save_picture(tmp_path / f"in/{index:03}.png", seed=index)
    settings = replace(stub.stub_options(), workers=4)
    for in_commit in (False, True):
        sink, model, slots = Slow(in_commit=in_commit), stub.StubModel(), []

        def new_slot(rows: int, model: Any = model, slots: list[Any] = slots) -> Any:
            slots.append(type(model).new_slot(model, rows))
            return slots[-1]

        model.new_slot = new_slot
        items = expand([str(tmp_path / "in")]).items
        with open_job(tmp_path / f"out{in_commit}", {}, notes={}, outputs=()) as job:
            Pipeline(model, model.bundle.manifest.labels, job, [sink], settings).run(items, lambda: None)
        assert sink.order == list(range(NUM_PICTURES))
        assert sink.most <= settings.batch * (len(slots) + 1) < NUM_PICTURES / 2, "in the slots, and one batch in hand"
        assert np.isin(model.calls, [settings.batch]).all()
