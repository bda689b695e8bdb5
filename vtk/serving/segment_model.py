"""A promptable model that any number of tasks may ask; pictures that it has seen cost their prompts only.

Everything that a picture needs the device for is done on one of few threads, in order of priority: features of one
picture are large, and no more of them exist at once than there are such threads, beside those in the cache.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from vtk.errors import DeadlineError, UnavailableError, UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.postprocess.segment import Queries
from vtk.predictor import Row
from vtk.preprocess.decode import DEFAULT, DecodeOptions
from vtk.preprocess.geometry import Geometry
from vtk.segmenting.embedded import EmbeddedPicture
from vtk.segmenting.predictor import SegmentPredictor
from vtk.segmenting.prompts import Prompt
from vtk.serving.arbiter import Arbiter
from vtk.serving.batcher import UNHURRIED, Pending, Ticket
from vtk.serving.vision_model import AT_ONCE, Answer, VisionModel, VisionStats, times_of
from vtk.serving.workers import Workers


class SegmentModel(VisionModel):
    """Open parts behind a batcher for pictures and a queue for prompts; thread-safe.

    The parameters are those of `VisionModel`; the text encoder and the decoder of `parts` must take their turns on the
    device by themselves. The model owns the parts and closes them.
    """

    def __init__(
        self,
        parts: SegmentPredictor,
        arbiter: Arbiter,
        *,
        name: str,
        version: str = "1",
        max_queue_delay: float = 0.002,
        max_queued: int = 512,
        num_workers: int | None = None,
        on_picture: Callable[[int, int], None] = lambda width, height: None,
    ) -> None:
        super().__init__(
            parts.images,
            arbiter,
            name=name,
            version=version,
            max_queue_delay=max_queue_delay,
            max_queued=max_queued,
            num_workers=num_workers,
            on_picture=on_picture,
        )
        self.parts = parts
        # as many as fill a batch, and one that decodes the next picture meanwhile
        self._askers = Workers(parts.batch_sizes[-1] + 1, f"vtk-prompts-{name}", niceness=0)

    @property
    def stats(self) -> VisionStats:
        """Totals so far; pictures are those that were encoded."""
        return replace(super().stats, num_queued=self._num_preparing, cache=self.parts.cache_stats)

    @property
    def _num_waiting(self) -> int:
        """A picture keeps its place until it is answered, so that those in the batcher are counted already."""
        return self._num_preparing

    async def segment(
        self,
        picture: bytes,
        prompts: Sequence[Prompt],
        *,
        decode_options: DecodeOptions = DEFAULT,
        ticket: Ticket = UNHURRIED,
        post: PostRecipe | None = None,
    ) -> Answer:
        """What prompts, at least one, find in one encoded picture; class i is prompt i.

        Cancelling the task ends the work on the picture before the next prompt. Raises what `answer` raises.
        """
        recipe = post or self.bundle.manifest.post
        question = _Question(self, picture, prompts, decode_options, ticket, recipe)
        with self._counted_errors():
            for prompt in prompts:
                self.parts.check(prompt)
            with self._place_in_queue():
                found = await self._asked(question)
            finish = partial(self._timed_finish, found, recipe)
            result, postprocess = await asyncio.wrap_future(self._workers.submit(finish, AT_ONCE))
        seconds = {**found.seconds, "postprocess": postprocess}
        self._add_seconds({name: seconds[name] for name in ("decode", "preprocess", "postprocess")})
        height, width = found.geometry.source_hw
        return Answer(result, width, height, seconds)

    async def answer(
        self,
        picture: bytes,
        *,
        decode_options: DecodeOptions = DEFAULT,
        ticket: Ticket = UNHURRIED,
        post: PostRecipe | None = None,
        class_filter: frozenset[int] | None = None,
    ) -> Answer:
        """Raises UsageError: there is nothing to answer without prompts."""
        raise self.needs_prompts()

    async def raw(self, picture: bytes, *, decode_options: DecodeOptions = DEFAULT, ticket: Ticket = UNHURRIED) -> Row:
        """Raises UsageError, as `answer`."""
        raise self.needs_prompts()

    def submit(self, tensor: npt.NDArray[np.float32], ticket: Ticket = UNHURRIED) -> Future[Row]:
        """Raises UsageError, as `answer`."""
        raise self.needs_prompts()

    def close(self) -> None:
        """Answer what is queued, take nothing more, and free the engines."""
        self._askers.close()
        super().close()
        self.parts.close()

    async def _asked(self, question: _Question) -> _Found:
        future = self._askers.submit(question.ask, question.ticket.priority)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            question.leave()
            raise

    def _timed_finish(self, found: _Found, post: PostRecipe) -> tuple[Detections, float]:
        started = time.monotonic()
        result = self.parts.finish(found.queries, found.geometry, post)
        return result, time.monotonic() - started

    def needs_prompts(self) -> UsageError:
        """What whoever asks without prompts is told."""
        return UsageError(
            f"The model '{self.name}' finds what it is prompted for.",
            hint="POST pictures with prompts to /v1/vision/segment.",
        )


@dataclass(frozen=True, eq=False)
class _Found:
    queries: Queries
    geometry: Geometry
    seconds: Mapping[str, float]


class _Question:
    """One picture and its prompts, on the way through the model; `ask` runs on one of its threads."""

    def __init__(
        self,
        model: SegmentModel,
        picture: bytes,
        prompts: Sequence[Prompt],
        decode_options: DecodeOptions,
        ticket: Ticket,
        post: PostRecipe,
    ) -> None:
        self.ticket = ticket
        self._model = model
        self._picture = picture
        self._prompts = prompts
        self._decode_options = decode_options
        self._post = post
        self._queued = time.monotonic()
        self._seconds = dict.fromkeys(("decode", "preprocess", "queue"), 0.0)
        self._lock = threading.Lock()
        self._has_left = False
        self._pending: Pending | None = None

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        with self._lock:
            self._has_left = True
            if self._pending is not None:
                self._pending.future.cancel()

    def ask(self) -> _Found:
        """Raises what `SegmentModel.segment` raises."""
        begun = time.monotonic()
        self._seconds["queue"] = begun - self._queued
        self._check_in_time()
        picture = self._model.parts.remembered(self._key(), self._embed)
        queries = self._model.parts.ask(picture, self._prompts, self._post.score_threshold, self._check_in_time)
        waited = sum(self._seconds.values())
        infer = time.monotonic() - self._queued - waited
        return _Found(queries, picture.geometry, {**self._seconds, "infer": infer})

    def _key(self) -> bytes:
        """Of the file, not of its pixels: a picture that is known need not be decoded."""
        return hashlib.sha256(repr(self._decode_options).encode() + self._picture).digest()

    def _embed(self) -> EmbeddedPicture:
        model, ticket = self._model, self.ticket
        prepared, spent = model._prepare(self._picture, self._decode_options, ticket.deadline)
        self._seconds |= spent
        with self._lock:
            self._check_in_time()
            self._pending = pending = model._batcher.submit(prepared.tensor, ticket)
        features = pending.future.result()
        self._seconds["queue"] += times_of(pending)["queue"]
        return EmbeddedPicture(features, prepared.geometry)

    def _check_in_time(self) -> None:
        if self._has_left:
            raise UnavailableError("The client has left.")
        if self.ticket.deadline is not None and time.monotonic() >= self.ticket.deadline:
            raise DeadlineError("The picture waited past its deadline.")
