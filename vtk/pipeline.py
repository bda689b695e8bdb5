"""Pictures through a predictor with bounded memory: decode in threads, infer in batches, commit in input order."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vtk.bundle import Label
from vtk.engines.base import Array
from vtk.errors import BackendError, ImageError
from vtk.inputs import Item
from vtk.jobs import Job
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Result
from vtk.preprocess.apply import Preprocessed
from vtk.preprocess.decode import DecodeOptions
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.sinks.base import Record, Sink
from vtk.sinks.rows import to_row
from vtk.sources.base import Picture
from vtk.sources.reader import Reader

# A full or vanished disk fails every picture alike: it stops the job instead of filling the ledger.
FATAL_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})

T = TypeVar("T")
U = TypeVar("U")


class Model(Protocol):
    """What the pipeline needs of a predictor. `infer` is called from one thread, the others from several."""

    def prepare(self, picture: RGBImage) -> Preprocessed: ...

    def infer(self, tensors: Sequence[npt.NDArray[np.float32]]) -> list[dict[str, Array]]: ...

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Result: ...


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """batch: pictures per call of the engine. workers: threads. max_errors: failures to accept, None for any number."""

    decode: DecodeOptions
    post: PostRecipe
    class_filter: frozenset[int] | None = None
    batch: int
    workers: int
    max_errors: int | None = None


@dataclass(frozen=True)
class Loaded:
    """A picture on its way to the engine. pixels: None unless a format wants them."""

    item: Item
    prepared: Preprocessed
    picture: Picture
    pixels: RGBImage | None


@dataclass(frozen=True)
class Failed:
    """A picture that has ended in the ledger; `reason` is a stable word, `message` a sentence."""

    item: Item
    reason: str
    message: str


Outcome: TypeAlias = Record | Failed


class Pipeline:
    """Carries the pictures of one job. At most `2 * batch + workers` of them are in memory at any moment."""

    def __init__(
        self,
        model: Model,
        labels: tuple[Label, ...],
        job: Job,
        sinks: Sequence[Sink],
        settings: PipelineSettings,
        reader: Reader | None = None,
    ) -> None:
        """`reader` reads the items of plans that have sources; without one, items are files."""
        self.model = model
        self.reader = reader or Reader()
        self.keeps_pictures = any(sink.wants_picture for sink in sinks)
        self.labels = labels
        self.job = job
        self.sinks = sinks
        self.settings = settings

    def run(self, items: Sequence[Item], on_progress: Callable[[], None]) -> bool:
        """Carry every item that the job has not done yet; False when more than `max_errors` have failed.

        Raises OSError when results cannot be written; what was committed before stays.
        """
        settings = self.settings
        rest = (items[index] for index in range(self.job.num_done, len(items)))
        ahead = 2 * settings.batch + settings.workers
        with (
            ThreadPoolExecutor(settings.workers, "vtk-run") as pool,
            closing(_map_ahead(pool, self._load, rest, ahead)) as loaded,
        ):
            for group in _groups(loaded, settings.batch):
                for outcome in self._outcomes(group, pool):
                    if self._too_many_failed():
                        return False
                    self._commit(outcome)
                on_progress()
        return not self._too_many_failed()

    def _too_many_failed(self) -> bool:
        limit = self.settings.max_errors
        return limit is not None and self.job.num_failed > limit

    def _load(self, item: Item) -> Loaded | Failed:
        try:
            picture = self.reader.read(item)
            pixels = picture.pixels(self.settings.decode)
            prepared = self.model.prepare(pixels)
            if self.keeps_pictures:
                return Loaded(item, prepared, picture, pixels)
            return Loaded(item, prepared, replace(picture, content=b""), None)
        except Exception as error:
            return _failure(item, error)

    def _outcomes(self, group: Sequence[Loaded | Failed], pool: ThreadPoolExecutor) -> list[Outcome]:
        """Infer, finish and write the group; one outcome per member, in its order."""
        good = [member for member in group if isinstance(member, Loaded)]
        rows = iter(self._infer([member.prepared.tensor for member in good]))
        finished = iter(pool.map(self._finish, good, rows))
        return [next(finished) if isinstance(member, Loaded) else member for member in group]

    def _infer(self, tensors: list[npt.NDArray[np.float32]]) -> list[dict[str, Array] | Exception]:
        """Raw outputs of each tensor, or why there are none; a batch that fails is tried one by one."""
        try:
            return list(self.model.infer(tensors)) if tensors else []
        except Exception as error:
            return [error] if len(tensors) == 1 else [self._infer([tensor])[0] for tensor in tensors]

    def _finish(self, loaded: Loaded, raw: dict[str, Array] | Exception) -> Outcome:
        settings, item = self.settings, loaded.item
        if isinstance(raw, Exception):
            return Failed(item, "engine", str(raw) or repr(raw))
        try:
            geometry = loaded.prepared.geometry
            result = self.model.finish(raw, geometry, class_filter=settings.class_filter, post=settings.post)
            picture = loaded.picture
            row = to_row(item, result, sha256=picture.sha256, labels=self.labels, extra=picture.extra)
            encoded = picture.content if self.keeps_pictures and isinstance(picture.content, bytes) else None
            record = Record(item, row, result, encoded, loaded.pixels)
            for sink in self.sinks:
                sink.write(record)
            return record
        except Exception as error:
            return _failure(item, error)

    def _commit(self, outcome: Outcome) -> None:
        if isinstance(outcome, Failed):
            self.job.add_failure(outcome.item, outcome.reason, outcome.message)
            return
        for sink in self.sinks:
            sink.commit(outcome)
        self.job.add_result(outcome.row)


def _failure(item: Item, error: Exception) -> Failed:
    if isinstance(error, OSError) and error.errno in FATAL_ERRNO:
        raise error
    if isinstance(error, ImageError):
        return Failed(item, error.reason, str(error))
    if isinstance(error, BackendError):
        return Failed(item, "engine", str(error))
    reason = "unwritable" if isinstance(error, OSError) else "internal"
    return Failed(item, reason, f"{type(error).__name__}: {error}")


def _map_ahead(
    pool: ThreadPoolExecutor, function: Callable[[T], U], values: Iterable[T], ahead: int
) -> Generator[U, None, None]:
    """Results in the order of `values`, with at most `ahead` of them running or waiting."""
    window: deque[Future[U]] = deque()
    try:
        for value in values:
            if len(window) >= ahead:
                yield window.popleft().result()
            window.append(pool.submit(function, value))
        while window:
            yield window.popleft().result()
    finally:
        for future in window:
            future.cancel()


def _groups(members: Iterable[Loaded | Failed], batch: int) -> Iterator[list[Loaded | Failed]]:
    """Cut the stream, in order, into groups with `batch` loaded members; long runs of failures are passed on early."""
    group: list[Loaded | Failed] = []
    good = 0
    for member in members:
        group.append(member)
        good += isinstance(member, Loaded)
        if good == batch or len(group) >= 4 * batch:
            yield group
            group, good = [], 0
    if group:
        yield group
