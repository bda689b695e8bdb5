"""A vision model that any number of tasks and threads may ask: decode, prepare, batch, infer, finish."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from vtk.bundle import Bundle
from vtk.errors import DeadlineError, OverloadedError, VtkError
from vtk.llm_serving.affinity import num_usable_cores
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Result
from vtk.predictor import Predictor, Row
from vtk.preprocess.apply import Preprocessed
from vtk.preprocess.decode import DEFAULT, DecodeOptions, decode
from vtk.preprocess.geometry import Geometry
from vtk.segmenting.lru import CacheStats
from vtk.serving.arbiter import Arbiter
from vtk.serving.batcher import UNHURRIED, Batcher, BatchRecord, Pending, Ticket
from vtk.serving.workers import Workers

STAGES = ("decode", "preprocess", "queue", "infer", "postprocess")
# Finishing is short and frees memory: it goes before every decoding.
AT_ONCE = -math.inf


@dataclass(frozen=True)
class Answer:
    """The result of one picture, its upright size in pixels, and the seconds of each of STAGES."""

    result: Result
    width: int
    height: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class VisionStats:
    """Totals of one model.

    seconds: of all pictures by stage; batches: calls by batch size; errors: by class name. cache: what a promptable
    model remembers of pictures, None for others.
    """

    pictures: int
    errors: Mapping[str, int]
    seconds: Mapping[str, float]
    batches: Mapping[int, int]
    num_queued: int
    cache: CacheStats | None = None

    @property
    def occupancy(self) -> float:
        """Share of the rows of all batches that held a picture, 0..1."""
        rows = sum(size * count for size, count in self.batches.items())
        return self.pictures / rows if rows else 0.0


class VisionModel:
    """An open bundle behind a dynamic batcher; thread-safe.

    max_queue_delay: see `Batcher`. max_queued: pictures that may be waiting or in preparation. num_workers: threads
    that decode, prepare and finish (None: one a core). on_picture: told width and height of each decoded picture, on
    one of these threads. The model owns the predictor and closes it. Making one runs every batch size a few times, and
    raises what the engines raise.
    """

    def __init__(
        self,
        predictor: Predictor,
        arbiter: Arbiter,
        *,
        name: str,
        version: str = "1",
        max_queue_delay: float = 0.002,
        max_queued: int = 512,
        num_workers: int | None = None,
        on_picture: Callable[[int, int], None] = lambda width, height: None,
    ) -> None:
        self.name = name
        self.version = version
        self.predictor = predictor
        self.bundle: Bundle = predictor.bundle
        self._max_queued = max_queued
        self._on_picture = on_picture
        self._observers: list[Callable[[BatchRecord], None]] = [self._count]
        self._lock = threading.Lock()
        self._num_preparing = 0
        self._pictures = 0
        self._errors: Counter[str] = Counter()
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._batches: Counter[int] = Counter()
        self._batcher = Batcher(
            predictor, arbiter, max_queue_delay=max_queue_delay, max_queued=max_queued, on_batch=self._tell
        )
        self._workers = Workers(num_workers or num_usable_cores(), f"vtk-pictures-{name}")

    @property
    def stats(self) -> VisionStats:
        """Totals so far."""
        with self._lock:
            return VisionStats(
                pictures=self._pictures,
                errors=dict(self._errors),
                seconds=dict(self._seconds),
                batches=dict(self._batches),
                num_queued=self._batcher.num_queued,
            )

    def observe(self, observer: Callable[[BatchRecord], None]) -> None:
        """Call `observer` after each batch, on the batcher's thread; it must return at once and not raise."""
        self._observers.append(observer)

    def submit(self, tensor: npt.NDArray[np.float32], ticket: Ticket = UNHURRIED) -> Future[Row]:
        """The raw outputs of a tensor (3, H, W) float32, without batch dimension; see `Batcher.submit`."""
        return self._batcher.submit(tensor, ticket).future

    async def answer(
        self,
        picture: bytes,
        *,
        decode_options: DecodeOptions = DEFAULT,
        ticket: Ticket = UNHURRIED,
        post: PostRecipe | None = None,
        class_filter: frozenset[int] | None = None,
    ) -> Answer:
        """The result of one encoded picture. Cancelling the task drops the picture wherever it stands.

        post: instead of the bundle's recipe. class_filter: class indices to report. Raises ImageError, UsageError,
        OverloadedError, DeadlineError, BackendError, UnavailableError.
        """
        with self._counted_errors():
            row, geometry, seconds = await self._infer(picture, decode_options, ticket)
            finish = partial(self._finish, row, geometry, post, class_filter)
            result, postprocess = await asyncio.wrap_future(self._workers.submit(finish, AT_ONCE))
        seconds |= {"postprocess": postprocess}
        self._add_seconds({"postprocess": postprocess})
        height, width = geometry.source_hw
        return Answer(result, width, height, seconds)

    async def raw(self, picture: bytes, *, decode_options: DecodeOptions = DEFAULT, ticket: Ticket = UNHURRIED) -> Row:
        """The raw outputs of one encoded picture, without batch dimension; otherwise like `answer`."""
        with self._counted_errors():
            return (await self._infer(picture, decode_options, ticket))[0]

    def close(self) -> None:
        """Answer what is queued, take nothing more, and free the engines."""
        self._batcher.close()
        self._workers.close()
        self.predictor.close()

    async def _infer(
        self, picture: bytes, decode_options: DecodeOptions, ticket: Ticket
    ) -> tuple[Row, Geometry, dict[str, float]]:
        with self._place_in_queue():
            prepare = partial(self._prepare, picture, decode_options, ticket.deadline)
            prepared, seconds = await asyncio.wrap_future(self._workers.submit(prepare, ticket.priority))
            pending = self._batcher.submit(prepared.tensor, ticket)
        row = await asyncio.wrap_future(pending.future)
        self._add_seconds(seconds)
        return row, prepared.geometry, seconds | times_of(pending)

    def _add_seconds(self, seconds: Mapping[str, float]) -> None:
        with self._lock:
            for stage, spent in seconds.items():
                self._seconds[stage] += spent

    @contextmanager
    def _counted_errors(self) -> Iterator[None]:
        try:
            yield
        except VtkError as error:
            with self._lock:
                self._errors[type(error).__name__] += 1
            raise

    @property
    def _num_waiting(self) -> int:
        """Pictures that were taken and have not reached the device."""
        return self._num_preparing + self._batcher.num_queued

    @contextmanager
    def _place_in_queue(self) -> Iterator[None]:
        """Count a picture before it is decoded, so that a burst does not pile up ahead of the queue."""
        with self._lock:
            count = self._num_waiting
            if count >= self._max_queued:
                raise OverloadedError(
                    f"{count} pictures wait already; the limit is {self._max_queued}.",
                    retry_after=self._batcher.retry_after(count),
                )
            self._num_preparing += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_preparing -= 1

    def _prepare(
        self, picture: bytes, decode_options: DecodeOptions, deadline: float | None
    ) -> tuple[Preprocessed, dict[str, float]]:
        started = time.monotonic()
        if deadline is not None and started >= deadline:
            raise DeadlineError("The picture waited past its deadline.")
        pixels = decode(picture, decode_options)
        self._on_picture(pixels.shape[1], pixels.shape[0])
        decoded = time.monotonic()
        prepared = self.predictor.prepare(pixels)
        return prepared, {"decode": decoded - started, "preprocess": time.monotonic() - decoded}

    def _finish(
        self, row: Row, geometry: Geometry, post: PostRecipe | None, class_filter: frozenset[int] | None
    ) -> tuple[Result, float]:
        started = time.monotonic()
        result = self.predictor.finish(row, geometry, post=post, class_filter=class_filter)
        return result, time.monotonic() - started

    def _tell(self, record: BatchRecord) -> None:
        for observer in self._observers:
            observer(record)

    def _count(self, record: BatchRecord) -> None:
        with self._lock:
            self._pictures += record.rows
            self._batches[record.size] += 1
            self._seconds["queue"] += sum(record.queue_seconds)
            self._seconds["infer"] += record.infer_seconds * record.rows


def times_of(pending: Pending) -> dict[str, float]:
    """Seconds in the queue and in the engine of a picture that is done."""
    return {"queue": pending.begun - pending.queued, "infer": pending.done - pending.begun}
