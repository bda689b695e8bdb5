"""Dynamic batching over engines that the tests stop, slow down and break."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtk.bundle import Artifact, Bundle, Label, Manifest
from vtk.engines.base import Array
from vtk.engines.fake import FakeEngine
from vtk.errors import BackendError, DeadlineError, OverloadedError, UnavailableError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.predictor import Predictor
from vtk.preprocess.recipe import Recipe
from vtk.serving.arbiter import Arbiter
from vtk.serving.batcher import Batcher, BatchRecord, Ticket

SIZE_HW = (2, 3)
Images = npt.NDArray[np.float32]


class Device:
    """The engines' function: tells the mean of each picture, and does what a test says in between."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds: dict[int, float] = {}
        self.seen: list[list[float]] = []  # the mean of every row of every batch
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.fails: Callable[[Images], Exception | None] = lambda images: None

    def __call__(self, images: Images) -> dict[str, Array]:
        self.reached.set()
        assert self.gate.wait(20)
        self.now += self.seconds.get(len(images), 0.0)
        means = images.mean(axis=(1, 2, 3))
        self.seen.append(means.tolist())
        if (error := self.fails(images)) is not None:
            raise error
        return {"logits": means[:, None].repeat(3, axis=1)}


def bundle() -> Bundle:
    manifest = Manifest(
        family="tiny", variant="S", layout="official", task="classify", config={}, source={}, recipe=Recipe(SIZE_HW),
        post=PostRecipe("classify"), labels=tuple(Label(i, str(i)) for i in range(3)), outputs=(), choices=(),
        artifacts=(Artifact("onnx", "fp32", 1, "model.onnx", "0" * 64, {}, "any"),), files={}, verify={},
        vtk_version="0",
    )  # fmt: skip
    return Bundle(Path("bundle"), manifest)


def picture(value: float) -> Images:
    return np.full((3, *SIZE_HW), value, np.float32)


def values(rows: list[dict[str, Any]]) -> list[float]:
    return [float(row["logits"][0]) for row in rows]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never happens"
        time.sleep(0.001)


@pytest.fixture
def device() -> Device:
    return Device()


Make = Callable[..., Batcher]


@pytest.fixture
def make(device: Device) -> Iterator[Make]:
    """A batcher over engines of these sizes; what it ran while it measured is forgotten."""
    made: list[Batcher] = []

    def make_one(*sizes: int, arbiter: Arbiter | None = None, **options: Any) -> Batcher:
        predictor = Predictor(bundle(), {size: FakeEngine(device, batch=size, size_hw=SIZE_HW) for size in sizes})
        made.append(Batcher(predictor, arbiter or Arbiter(), **options))
        device.seen.clear()
        device.reached.clear()
        return made[-1]

    yield make_one
    device.gate.set()
    for batcher in made:
        batcher.close()
        assert not batcher._thread.is_alive()
        assert batcher.num_queued == 0


def hold(device: Device, batcher: Batcher) -> Future[Any]:
    """Let a first picture, of value 0, into the engine and stop it there."""
    device.gate.clear()
    device.reached.clear()
    first = batcher.submit(picture(0), Ticket()).future
    assert device.reached.wait(20)
    return first


def test_every_caller_gets_the_row_of_its_own_picture(make: Make) -> None:
    records: list[BatchRecord] = []
    batcher = make(1, 4, 8, on_batch=records.append, max_queued=10_000)

    def ask(start: int) -> bool:
        futures = [batcher.submit(picture(start + i), Ticket(priority=i % 3)).future for i in range(50)]
        return values([future.result(20) for future in futures]) == [start + i for i in range(50)]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(0, 800, 50)))
    assert sum(record.rows for record in records) == 800
    assert all(record.rows <= record.size and record.error is None for record in records)


def test_pictures_share_a_batch_as_soon_as_it_is_full(make: Make, device: Device) -> None:
    batcher = make(1, 4, max_queue_delay=3600.0)
    futures = [batcher.submit(picture(i), Ticket()).future for i in range(1, 5)]
    assert values([future.result(20) for future in futures]) == [1, 2, 3, 4]
    assert device.seen == [[1, 2, 3, 4]]


def test_a_lower_priority_value_goes_first_and_equals_go_in_order(make: Make, device: Device) -> None:
    batcher = make(1)
    first = hold(device, batcher)
    order = [(1, 10), (0, 20), (2, 30), (0, 21), (1, 11), (-1, 5)]
    futures = [batcher.submit(picture(value), Ticket(priority=priority)).future for priority, value in order]
    device.gate.set()
    for future in (first, *futures):
        future.result(20)
    assert [row for batch in device.seen for row in batch] == [0, 5, 20, 21, 10, 11, 30]


def test_a_full_queue_refuses_and_goes_on(make: Make, device: Device) -> None:
    batcher = make(1, max_queued=3)
    first = hold(device, batcher)
    futures = [batcher.submit(picture(i), Ticket()).future for i in range(1, 4)]
    with pytest.raises(OverloadedError, match="3 pictures wait already; the limit is 3") as error:
        batcher.submit(picture(9), Ticket())
    assert error.value.retry_after >= 1
    assert futures[1].cancel()
    futures[1] = batcher.submit(picture(7), Ticket()).future  # who left made room
    device.gate.set()
    assert values([future.result(20) for future in (first, *futures)]) == [0, 1, 7, 3]


def test_who_leaves_the_queue_is_never_computed(make: Make, device: Device) -> None:
    batcher = make(1, 4)
    first = hold(device, batcher)
    futures = [batcher.submit(picture(i), Ticket()).future for i in range(1, 9)]
    for future in futures[::2]:
        assert future.cancel()
    assert not first.cancel()
    device.gate.set()
    assert values([future.result(20) for future in futures[1::2]]) == [2, 4, 6, 8]
    assert {row for batch in device.seen for row in batch}.isdisjoint({1, 3, 5, 7})


def test_a_picture_past_its_deadline_is_told_so_and_never_computed(make: Make, device: Device) -> None:
    """Also while somebody else holds the device: the answer does not wait for it."""
    arbiter = Arbiter()
    batcher = make(1, arbiter=arbiter)
    with arbiter.vision_turn(seconds=1.0):
        late = batcher.submit(picture(5), Ticket(deadline=time.monotonic() + 0.02)).future
        other = batcher.submit(picture(6), Ticket()).future
        gone = batcher.submit(picture(7), Ticket(deadline=time.monotonic() - 1)).future
        for future in (late, gone):
            with pytest.raises(DeadlineError, match="past its deadline"):
                future.result(20)
        assert not other.done()
    assert values([other.result(20)]) == [6]
    assert device.seen == [[6]]


def test_a_deadline_that_passes_in_the_engine_still_gets_its_answer(make: Make, device: Device) -> None:
    batcher = make(1)
    device.gate.clear()
    future = batcher.submit(picture(5), Ticket(deadline=time.monotonic() + 0.05)).future
    assert device.reached.wait(20)
    time.sleep(0.06)
    device.gate.set()
    assert values([future.result(20)]) == [5]


@pytest.mark.parametrize(
    ("error", "message"),
    [(BackendError("out of memory"), "^out of memory$"), (ArithmeticError("odd"), "batch failed: ArithmeticError")],
)
def test_a_batch_that_fails_costs_its_own_pictures_and_no_other(
    make: Make, device: Device, error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    records: list[BatchRecord] = []
    batcher = make(2, on_batch=records.append, max_queue_delay=3600.0)
    device.fails = lambda images: error if (images == 3).any() else None
    futures = [batcher.submit(picture(i), Ticket()).future for i in range(1, 7)]
    for i, future in enumerate(futures, 1):
        if i in (3, 4):
            with pytest.raises(BackendError, match=message):
                future.result(20)
        else:
            assert values([future.result(20)]) == [i]
    assert sorted(record.error is None for record in records) == [False, True, True]
    assert "a batch of pictures failed" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "count", "step", "expected"),
    [
        ({1: 0.01, 4: 0.02, 8: 0.03}, 8, None, 8),  # the cheapest a picture
        ({1: 0.01, 4: 0.02, 8: 0.03}, 3, None, 4),
        ({1: 0.01, 4: 0.05, 8: 0.2}, 8, None, 1),  # big batches that do not pay
        ({1: 0.01, 4: 0.02, 8: 0.03}, 1, None, 1),
        ({1: 0.01, 4: 0.02, 8: 0.03}, 8, 0.155, 4),  # what fits beside a step of a stream
        ({1: 0.01, 4: 0.02, 8: 0.03}, 8, 0.165, 1),
        ({1: 0.01, 4: 0.02, 8: 0.03}, 8, 0.5, 1),  # nothing fits: the smallest
    ],
)
def test_the_batch_size_follows_measured_seconds_and_the_room(
    make: Make, device: Device, seconds: dict[int, float], count: int, step: float | None, expected: int
) -> None:
    device.seconds = seconds
    arbiter = Arbiter(max_itl=0.2, clock=lambda: device.now)
    batcher = make(1, 4, 8, arbiter=arbiter, clock=lambda: device.now, max_queue_delay=0.0)
    assert [batcher.expected_seconds(size) for size in (1, 4, 8)] == pytest.approx(list(seconds.values()))
    seat = arbiter.language()
    if step is not None:
        with seat.step(lambda: True):
            device.now += step
    with arbiter.vision_turn(seconds=1.0) if step is None else seat.step(lambda: True):
        device.now += step or 0.0
        futures = [batcher.submit(picture(i), Ticket()).future for i in range(count)]
        wait_until(lambda: arbiter.snapshot().num_waiting == 1)
        assert batcher._choose_size() == expected
    seat.rest()
    assert values([future.result(20) for future in futures]) == list(range(count))


def test_a_size_that_was_slow_once_is_tried_again(make: Make, device: Device) -> None:
    device.seconds = {1: 0.01, 2: 1.0}
    batcher = make(1, 2, clock=lambda: device.now, arbiter=Arbiter(clock=lambda: device.now), max_queue_delay=0.0)
    device.seconds[2] = 0.011
    for _ in range(2500):
        batcher._choose_size()
    first = hold(device, batcher)
    futures = [batcher.submit(picture(i), Ticket()).future for i in (1, 2)]
    device.gate.set()
    for future in (first, *futures):
        future.result(20)
    assert [1, 2] in device.seen


def test_close_answers_what_is_queued_and_takes_nothing_more(make: Make, device: Device) -> None:
    batcher = make(1, 8, max_queue_delay=3600.0)
    futures = [batcher.submit(picture(i), Ticket()).future for i in range(5)]
    batcher.close()
    assert values([future.result(0) for future in futures]) == [0, 1, 2, 3, 4]
    with pytest.raises(UnavailableError, match="takes no more pictures"):
        batcher.submit(picture(1), Ticket())


def test_another_shape_is_refused(make: Make) -> None:
    batcher = make(1)
    for tensor in (np.zeros((3, 5, 5), np.float32), np.zeros((3, *SIZE_HW), np.float64)):
        with pytest.raises(UsageError, match=r"takes float32 \(3, 2, 3\), got"):
            batcher.submit(tensor, Ticket())  # type: ignore[arg-type]


def test_an_engine_that_fails_at_once_is_no_batcher(device: Device) -> None:
    engine = FakeEngine(device, batch=1, size_hw=SIZE_HW)
    device.fails = lambda images: BackendError("broken")
    with pytest.raises(BackendError, match="broken"):
        Batcher(Predictor(bundle(), {1: engine}), Arbiter())
