"""Dynamic batching: pictures of many callers share calls of an engine with fixed batch sizes.

One thread owns the engines. It waits `max_queue_delay` for company, asks the arbiter for the device and only then picks
its pictures, so that who has left or come meanwhile is known. The batch size is the one with the fewest measured
seconds a picture among those that fit beside a language step.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vtk.errors import BackendError, DeadlineError, OverloadedError, UnavailableError, UsageError, VtkError
from vtk.predictor import Predictor, Row
from vtk.serving.arbiter import Arbiter
from vtk.serving.turns import UpperEstimate

_log = logging.getLogger(__name__)
_WARM_UP_CALLS = 3


@dataclass(frozen=True)
class Ticket:
    """How urgent a picture is: a lower priority value goes first; deadline on the clock of time.monotonic()."""

    priority: int = 0
    deadline: float | None = None


UNHURRIED = Ticket()


@dataclass(order=True)
class Pending:
    """A picture on its way: its future, and when it was queued, begun and done (seconds of the clock)."""

    rank: tuple[int, int]
    tensor: npt.NDArray[np.float32] = field(compare=False)
    deadline: float | None = field(compare=False)
    queued: float = field(compare=False)
    future: Future[Row] = field(compare=False, default_factory=Future)
    begun: float = field(compare=False, default=0.0)
    done: float = field(compare=False, default=0.0)


@dataclass(frozen=True)
class BatchRecord:
    """One call of an engine: its batch size, the seconds each picture had waited, and what the call took."""

    size: int
    queue_seconds: tuple[float, ...]
    infer_seconds: float
    error: VtkError | None = None

    @property
    def rows(self) -> int:
        """Pictures in the batch; the other rows were padding."""
        return len(self.queue_seconds)


class Batcher:
    """A queue of pictures before the engines of one predictor. Any thread may submit.

    max_queue_delay: seconds that a picture waits for others while the biggest batch is not full. max_queued: pictures
    that may wait. on_batch is called after each call and before its results are out, on the batcher's
    thread; it must not raise. Making one runs every
    batch size on zeros, and raises what the engines raise.
    """

    def __init__(
        self,
        predictor: Predictor,
        arbiter: Arbiter,
        *,
        max_queue_delay: float = 0.002,
        max_queued: int = 512,
        on_batch: Callable[[BatchRecord], None] = lambda record: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._predictor = predictor
        self._arbiter = arbiter
        self._max_queue_delay = max_queue_delay
        self._max_queued = max_queued
        self._on_batch = on_batch
        self._clock = clock
        self._shape = (3, *predictor.bundle.manifest.recipe.size_hw)
        self._seconds = {size: UpperEstimate() for size in predictor.batch_sizes}
        self._queue: list[Pending] = []
        self._numbers = itertools.count()
        self._change = threading.Condition()
        self._closing = False
        self._measure()
        self._thread = threading.Thread(target=self._work, name="vtk-vision", daemon=True)
        self._thread.start()

    @property
    def num_queued(self) -> int:
        """Pictures that wait."""
        return len(self._queue)

    def expected_seconds(self, size: int) -> float:
        """What a call of that batch size takes, as measured."""
        return self._seconds[size].seconds

    def retry_after(self, count: int) -> float:
        """Seconds after which `count` pictures should have been answered, at least 1."""
        size = self._predictor.batch_sizes[-1]
        return max(1.0, self.expected_seconds(size) * count / size)

    def submit(self, tensor: npt.NDArray[np.float32], ticket: Ticket) -> Pending:
        """Queue a tensor (3, H, W) float32.

        Cancelling the future before its batch begins drops it; a deadline that passes sets DeadlineError. Raises
        UsageError for another shape, OverloadedError when the queue is full, UnavailableError after `close`.
        """
        if tensor.shape != self._shape or tensor.dtype != np.float32:
            raise UsageError(f"The model takes float32 {self._shape}, got {tensor.dtype} {tensor.shape}.")
        with self._change:
            if self._closing:
                raise UnavailableError("The model is being unloaded and takes no more pictures.")
            if len(self._queue) >= self._max_queued:
                self._drop_settled(self._clock())
            if (count := len(self._queue)) >= self._max_queued:
                raise OverloadedError(
                    f"{count} pictures wait already; the limit is {self._max_queued}.",
                    retry_after=self.retry_after(count),
                )
            pending = Pending((ticket.priority, next(self._numbers)), tensor, ticket.deadline, self._clock())
            heapq.heappush(self._queue, pending)
            self._change.notify()
        return pending

    def close(self) -> None:
        """Answer what is queued, take nothing more, and return when the thread is gone."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join()

    def _measure(self) -> None:
        """Run every batch size on zeros: the first pictures find the engines warm and their times known."""
        blank = np.zeros(self._shape, np.float32)
        for size, estimate in self._seconds.items():
            estimate.add(min(self._time(size, [blank] * size, estimate.seconds) for _ in range(_WARM_UP_CALLS)))

    def _time(self, size: int, tensors: Sequence[npt.NDArray[np.float32]], expected: float) -> float:
        with self._arbiter.vision_turn(seconds=expected):
            started = self._clock()
            self._predictor.infer_batch(size, tensors)
            return self._clock() - started

    def _work(self) -> None:
        while self._gather():
            self._take_turn()

    def _gather(self) -> bool:
        """Wait for pictures, and a little for more of them. False when closed and empty."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return False
            oldest = min(pending.queued for pending in self._queue)
            self._change.wait_for(
                lambda: len(self._queue) >= self._predictor.batch_sizes[-1] or self._closing,
                timeout=max(0.0, oldest + self._max_queue_delay - self._clock()),
            )
            return True

    def _take_turn(self) -> None:
        size = self._choose_size()
        with self._change:
            deadline = min((p.deadline for p in self._queue if p.deadline is not None), default=None)
        try:
            with self._arbiter.vision_turn(seconds=self.expected_seconds(size), deadline=deadline) as turn:
                self._run(size)
                while self._queue and turn.may_go_on(self.expected_seconds(size := self._choose_size())):
                    self._run(size)
        except DeadlineError:
            with self._change:
                self._drop_settled(self._clock())

    def _choose_size(self) -> int:
        """The fewest seconds a picture among the sizes that fit beside a language step; else the smallest size."""
        room, count = self._arbiter.vision_room(), max(1, len(self._queue))
        sizes = self._predictor.batch_sizes
        fitting = [size for size in sizes if self.expected_seconds(size) <= room]
        chosen = min(fitting or sizes[:1], key=lambda size: (self.expected_seconds(size) / min(size, count), size))
        if room == math.inf:  # nobody waits for a token, so that a wrong guess does no harm
            for size in sizes:
                if size != chosen:
                    self._seconds[size].fade()
        return chosen

    def _run(self, size: int) -> None:
        batch = self._take(size)
        if not batch:
            return
        size = min(fits for fits in self._predictor.batch_sizes if fits >= len(batch))
        begun = self._clock()
        error: VtkError | None = None
        try:
            rows = self._predictor.infer_batch(size, [pending.tensor for pending in batch])
        except Exception as failure:
            _log.exception("a batch of pictures failed")
            error = failure if isinstance(failure, VtkError) else BackendError(f"The batch failed: {failure!r}")
        done = self._clock()
        for pending in batch:
            pending.begun, pending.done = begun, done
        self._on_batch(BatchRecord(size, tuple(begun - p.queued for p in batch), done - begun, error))
        if error is None:
            self._seconds[size].add(done - begun)
            for pending, row in zip(batch, rows, strict=True):
                pending.future.set_result(row)
        else:
            _fail(batch, error)

    def _take(self, size: int) -> list[Pending]:
        """Up to `size` pictures in order; those that have left or expired are settled on the way."""
        batch: list[Pending] = []
        with self._change:
            now = self._clock()
            while self._queue and len(batch) < size:
                pending = heapq.heappop(self._queue)
                if _is_expired(pending, now):
                    _expire(pending)
                elif pending.future.set_running_or_notify_cancel():
                    batch.append(pending)
        return batch

    def _drop_settled(self, now: float) -> None:
        """Take out who has left, and answer who has expired."""
        expired = [pending for pending in self._queue if _is_expired(pending, now)]
        self._queue = [p for p in self._queue if not p.future.cancelled() and not _is_expired(p, now)]
        heapq.heapify(self._queue)
        for pending in expired:
            _expire(pending)


def _is_expired(pending: Pending, now: float) -> bool:
    return pending.deadline is not None and pending.deadline <= now


def _expire(pending: Pending) -> None:
    if pending.future.set_running_or_notify_cancel():
        pending.future.set_exception(DeadlineError("The picture waited past its deadline."))


def _fail(batch: Iterable[Pending], error: VtkError) -> None:
    for pending in batch:
        pending.future.set_exception(error)
