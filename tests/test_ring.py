"""The ring under a run: what is in which batch, how much is alive, and how the cores are shared."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vtk.cores import CoreSplit, default_batch, split_cores
from vtk.errors import UsageError
from vtk.inputs import Plan, expand
from vtk.items import Item
from vtk.jobs import open_job
from vtk.pipeline import Pipeline
from vtk.ring import Failed, Ring
from vtk.sinks.base import Record, Sink
from vtk.sources.base import Picture
from vtk.sources.reader import Reader

SavePicture = Callable[..., Path]


class UnevenReader(Reader):
    """Takes its time as a seed tells, and counts."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        self.num_read = 0
        self.lock = threading.Lock()

    def read(self, item: Item) -> Picture:
        with self.lock:
            delay = 0.004 * float(self.rng.random())
            self.num_read += 1
        time.sleep(delay)
        return super().read(item)


class SlowSink(Sink):
    """Notes at every commit how many pictures have been read and not yet committed."""

    def __init__(self, reader: UnevenReader) -> None:
        self.reader = reader
        self.num_committed = 0
        self.alive: list[int] = []

    def commit(self, record: Record) -> None:
        time.sleep(0.002)
        self.alive.append(self.reader.num_read - self.num_committed)
        self.num_committed += 1


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """48 pictures of one gray each, which is their place, and a broken file after every fifth."""
    folder = tmp_path / "in"
    folder.mkdir()
    for index in range(48):
        Image.fromarray(np.full((9, 7, 3), index, np.uint8)).save(folder / f"{index:02}.png")
        if index % 5 == 4:
            (folder / f"{index:02}x.png").write_bytes(b"broken")
    return expand([str(folder)])


def carry(stub: ModuleType, plan: Plan, out: Path, model: Any, reader: UnevenReader, *sinks: Sink) -> None:
    with open_job(out, {}, notes={}, outputs=()) as job:
        assert Pipeline(model, stub.LABELS, job, sinks, stub.stub_options(), reader).run(plan.items, lambda: None)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_batch_holds_the_same_pictures_in_every_run(stub: ModuleType, plan: Plan, tmp_path: Path, lanes: int) -> None:
    class Noting(stub.StubModel):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.lanes = lanes
            self.batches: list[tuple[int, ...]] = []

        def infer(self, tensors: Any) -> Any:
            self.batches.append(tuple(round(255 * float(tensor.mean())) for tensor in tensors))
            return super().infer(tensors)

    for seed in range(4):
        model = Noting()
        carry(stub, plan, tmp_path / f"out{seed}", model, UnevenReader(seed))
        assert sorted(model.batches) == [tuple(range(start, start + 4)) for start in range(0, 48, 4)]


def test_a_slow_sink_holds_back_the_loading(stub: ModuleType, plan: Plan, tmp_path: Path) -> None:
    reader = UnevenReader(0)
    sink = SlowSink(reader)
    carry(stub, plan, tmp_path / "out", stub.StubModel(), reader, sink)
    options = stub.stub_options()
    slots = 1 + 1 + 1  # of one lane, of the batch that is finished, of three workers that fill four rows
    failed = 48 // 5
    assert sink.num_committed == 48
    assert max(sink.alive) <= slots * options.batch + options.workers + failed


def test_an_error_of_a_loading_thread_ends_the_run(stub: ModuleType, plan: Plan, tmp_path: Path) -> None:
    class Broken(UnevenReader):
        def read(self, item: Item) -> Picture:
            if item.index == 20:
                raise KeyboardInterrupt
            return super().read(item)

    with pytest.raises(KeyboardInterrupt):
        carry(stub, plan, tmp_path / "out", stub.StubModel(), Broken(0))
    carry(stub, plan, tmp_path / "out", stub.StubModel(), UnevenReader(0))


def test_a_stopped_ring_gives_nothing_more() -> None:
    items = [Item(index, "", "", "") for index in range(3)]
    slots: list[Any] = [object()]
    ring: Ring[None] = Ring(items, slots, 2, lambda batch: None)
    taken = ring.take()
    assert taken == (0, items[0])
    ring.stop()
    assert ring.take() is None
    failed = Failed(items[0], "truncated", "It ends early.")
    assert ring.seat(0, lambda: failed) is None
    assert list(ring) == []


@pytest.mark.parametrize(
    ("cores", "given", "expected"),
    [
        (1, {}, CoreSplit(1, 3, 1, 1)),
        (2, {}, CoreSplit(2, 4, 2, 1)),
        (8, {}, CoreSplit(8, 12, 8, 1)),
        (64, {}, CoreSplit(64, 96, 8, 8)),
        (12, {}, CoreSplit(12, 18, 6, 2)),
        (4, {"engine_threads": 4}, CoreSplit(4, 6, 1, 4)),
        (4, {"engine_threads": 16, "workers": 1}, CoreSplit(4, 1, 1, 16)),
    ],
)
def test_lanes_and_threads_fill_the_cores_and_no_more(cores: int, given: dict[str, int], expected: CoreSplit) -> None:
    split = split_cores(cores, **given)
    assert split == expected
    assert split.lanes * split.threads <= max(cores, split.threads)


def test_a_gpu_takes_large_batches_and_a_lane_small_ones() -> None:
    assert default_batch((1, 4, 8), gpu=True) == 8
    assert default_batch((4, 8), gpu=False) == 4


@pytest.mark.parametrize("given", [{"workers": 100_000}, {"engine_threads": 1025}])
def test_more_threads_than_make_sense_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="more than 1024 threads"):
        split_cores(2, **given)
    assert split_cores(2, workers=1024).workers == 1024
