"""One request's pictures through one model: each is answered by itself, whatever becomes of the others."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from vtk.bundle import Label
from vtk.errors import ImageError, VtkError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Embeddings
from vtk.preprocess.decode import DecodeOptions
from vtk.segmenting.prompts import Prompt, labels_of
from vtk.server.errors import openai_body
from vtk.server.fetch import ByteBudget
from vtk.server.pictures import PictureReader, PictureSource
from vtk.server.settings import ServerSettings
from vtk.server.tracing import add_past_stages
from vtk.server.vision.options import DetectOptions, EmbedOptions, VisionOptions
from vtk.serving.segment_model import SegmentModel
from vtk.sinks.annotated import is_jpeg, write_annotated
from vtk.sinks.rows import decimals, values_of

if TYPE_CHECKING:
    from vtk.serving.batcher import Ticket
    from vtk.serving.vision_model import Answer, VisionModel

MAX_DRAWINGS = 2  # over all requests: each holds a decoded picture

Entry = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What is done with every picture of a request."""

    model: VisionModel
    options: VisionOptions
    ticket: Ticket
    post: PostRecipe
    class_filter: frozenset[int] | None
    prompts: tuple[Prompt, ...] = ()

    @property
    def labels(self) -> tuple[Label, ...]:
        """Class i of a result is `labels[i]`."""
        if self.prompts:
            return labels_of([prompt.name for prompt in self.prompts])
        return self.model.bundle.manifest.labels

    @property
    def is_annotated(self) -> bool:
        return isinstance(self.options, DetectOptions) and self.options.response == "annotated"


@dataclass(frozen=True)
class Drawing:
    """An encoded picture with its detections drawn on it."""

    media_type: str
    data: bytes


@dataclass(frozen=True)
class Outcome:
    """One picture's part of the answer; `error` says why it has no result."""

    entry: Entry
    error: VtkError | None = None
    drawing: Drawing | None = None


class Answerer:
    """Answers by the server's settings. One for all requests; belongs to one event loop."""

    def __init__(self, settings: ServerSettings, reader: PictureReader) -> None:
        self._reader = reader
        self._max_bytes = settings.limits.max_body_bytes
        self._decode_options = DecodeOptions(max_pixels=settings.limits.max_pixels)
        self._drawing_slots = anyio.CapacityLimiter(MAX_DRAWINGS)

    async def answer(self, job: Job, sources: Sequence[PictureSource]) -> list[Outcome]:
        """One outcome per source, in their order. Cancelling frees what still waits."""
        fetched, drawn = self._reader.budget(), ByteBudget(self._max_bytes)
        outcomes: dict[int, Outcome] = {}

        async def answer_one(index: int) -> None:
            try:
                outcomes[index] = await self._answer_one(job, index, sources[index], fetched, drawn)
            except VtkError as error:
                outcomes[index] = _failed(index, error)

        async with anyio.create_task_group() as group:
            for index in range(len(sources)):
                group.start_soon(answer_one, index)
        return [outcomes[index] for index in range(len(sources))]

    async def _answer_one(
        self, job: Job, index: int, source: PictureSource, fetched: ByteBudget, drawn: ByteBudget
    ) -> Outcome:
        start = time.monotonic()
        picture = await self._reader.read(source, fetched, deadline=job.ticket.deadline)
        read = time.monotonic() - start
        answer = await self._ask(job, picture)
        add_past_stages(answer.seconds, {"model": job.model.name, "picture": index})
        entry = await to_thread.run_sync(_entry, index, read, answer, job.labels, job.options)
        if not job.is_annotated:
            return Outcome(entry)
        draw = partial(self._draw, picture, entry["detections"], drawn)
        return Outcome(entry, drawing=await to_thread.run_sync(draw, limiter=self._drawing_slots))

    async def _ask(self, job: Job, picture: bytes) -> Answer:
        model, options = job.model, self._decode_options
        if isinstance(model, SegmentModel):
            return await model.segment(picture, job.prompts, decode_options=options, ticket=job.ticket, post=job.post)
        return await model.answer(
            picture, decode_options=options, ticket=job.ticket, post=job.post, class_filter=job.class_filter
        )

    def _draw(self, picture: bytes, detections: list[Entry], budget: ByteBudget) -> Drawing:
        stream = io.BytesIO()
        write_annotated(stream, picture, detections, self._decode_options)
        budget.take(stream.tell())
        return Drawing("image/jpeg" if is_jpeg(picture) else "image/png", stream.getvalue())


def _entry(index: int, read: float, answer: Answer, labels: tuple[Label, ...], options: VisionOptions) -> Entry:
    values = values_of(answer.result, labels)
    if isinstance(answer.result, Embeddings):
        as_text = isinstance(options, EmbedOptions) and options.encoding_format == "base64"
        pooled = answer.result.pooled
        values["embedding"] = (
            base64.b64encode(pooled.astype("<f4").tobytes()).decode("ascii") if as_text else decimals(pooled)
        )
    seconds = {"read": read, **answer.seconds}
    return {"index": index, "width": answer.width, "height": answer.height, **values, "seconds": seconds}


def _failed(index: int, error: VtkError) -> Outcome:
    told: Entry = dict(openai_body(error, param=f"images.{index}")["error"])
    if isinstance(error, ImageError):
        told["reason"] = error.reason
    return Outcome({"index": index, "error": told}, error)
