"""Pictures through a model with bounded memory: every stage works at the same time, and results come in input order.

Loading threads decode and put each picture straight into a row of a slot; lanes carry full slots through the engine;
finishing threads make results and write their files; the calling thread commits. `vtk/ring.py` ties them together.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, runtime_checkable

from vtk.bundle import Label
from vtk.engines.base import Array
from vtk.errors import BackendError, ImageError, UsageError
from vtk.items import Item
from vtk.jobs import Job
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Result
from vtk.preprocess.decode import DecodeOptions
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.profile import Profile
from vtk.repeats import Repeats
from vtk.ring import Batch, Failed, Loaded, Member, Repeated, Ring
from vtk.sinks.base import Record, Sink
from vtk.sinks.rows import to_row
from vtk.slots import Row, Slot
from vtk.sources.base import Picture
from vtk.sources.reader import Reader

# What the name of one picture's file may be refused with, by the file system or by what is there already.
NAME_ERRNO = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})


class Finisher(Protocol):
    """What makes a result of raw outputs; called from several threads."""

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Result: ...


class Model(Finisher, Protocol):
    """What the pipeline needs of a predictor. lanes: how many slots may infer at the same time."""

    lanes: int

    def new_slot(self, rows: int) -> Slot: ...


@runtime_checkable
class AskedByPicture(Protocol):
    """A model that is asked something else of each picture."""

    def for_picture(self, file_name: str) -> Finisher: ...


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """batch: pictures per slot. workers: threads that load, and as many that finish. max_errors: failures to accept,
    None for any number.
    """

    decode: DecodeOptions
    post: PostRecipe
    class_filter: frozenset[int] | None = None
    batch: int
    workers: int
    max_errors: int | None = None


Outcome: TypeAlias = Record | Failed | Repeated
Finishing: TypeAlias = list[Future[Outcome]]


class Pipeline:
    """Carries the pictures of one job.

    At most `workers` decoded pictures and a few slots are in memory at any moment, however slow a sink is. A picture
    whose files cannot be written is `unwritable` in the ledger if that is due to itself and would happen again: a name
    that is refused, a size that the format cannot hold. Any other failure to write stops the job before that picture
    is committed, so that it is done when the job goes on.
    """

    def __init__(
        self,
        model: Model,
        labels: tuple[Label, ...],
        job: Job,
        sinks: Sequence[Sink],
        settings: PipelineSettings,
        reader: Reader | None = None,
        repeats: Repeats | None = None,
        profile: Profile | None = None,
    ) -> None:
        """reader: reads the items of plans that have sources; without one, items are files. repeats: knows the pictures
        whose bytes the job has met; None to compute each.
        """
        self.model = model
        self.reader = reader or Reader()
        self.keeps_pictures = any(sink.wants_picture for sink in sinks)
        self.labels = labels
        self.job = job
        self.sinks = sinks
        self.settings = settings
        self.profile = profile or Profile()
        self.repeats = repeats

    def run(self, items: Sequence[Item], on_progress: Callable[[], None]) -> bool:
        """Carry every item that the job has not done yet; False when more than `max_errors` have failed.

        Raises OSError when results cannot be written; what was committed before stays.
        """
        settings, lanes = self.settings, self.model.lanes
        slots = [self.model.new_slot(settings.batch) for _ in range(_num_slots(settings, lanes))]
        rest = (items[index] for index in range(self.job.num_done, len(items)))
        threads = {"load": settings.workers, "infer": lanes, "finish": settings.workers}
        with (
            self.profile.running(**threads),
            ThreadPoolExecutor(settings.workers, "vtk-finish") as finishers,
            ThreadPoolExecutor(lanes, "vtk-infer") as inferrers,
            ThreadPoolExecutor(settings.workers, "vtk-load") as loaders,
        ):
            ring = Ring(rest, slots, settings.batch, lambda batch: inferrers.submit(self._infer, batch, finishers))
            try:
                for _ in range(settings.workers):
                    loaders.submit(self._load_all, ring)
                return self._commit_all(ring, on_progress)
            finally:
                ring.stop()
                inferrers.shutdown(wait=False, cancel_futures=True)
                finishers.shutdown(wait=False, cancel_futures=True)

    def _commit_all(self, ring: Ring[Future[Finishing]], on_progress: Callable[[], None]) -> bool:
        for batch, inferred in ring:
            outcomes = [outcome.result() for outcome in inferred.result()]
            for outcome in outcomes:
                if self._too_many_failed():
                    return False
                with self.profile.measure("commit"):
                    self._commit(outcome)
            ring.free(batch)
            on_progress()
        return not self._too_many_failed()

    def _too_many_failed(self) -> bool:
        limit = self.settings.max_errors
        return limit is not None and self.job.num_failed > limit

    def _load_all(self, ring: Ring[Future[Finishing]]) -> None:
        """The life of a loading thread."""
        try:
            while (taken := ring.take()) is not None:
                self._load(ring, *taken)
        except BaseException as error:
            ring.stop(error)

    def _load(self, ring: Ring[Future[Finishing]], turn: int, item: Item) -> None:
        """Read and decode the item, and put its picture into a row as soon as its turn has come."""
        try:
            with self.profile.measure("read"):
                picture = self.reader.read(item)
            repeated = Repeated(item, picture if self.keeps_pictures else replace(picture, content=b""))
            if self.repeats is not None and self.repeats.has(picture):
                ring.seat(turn, lambda: repeated)
                return
            with self.profile.measure("decode"):
                pixels, source_hw = self._pixels(picture)
        except Exception as error:
            failed = _failure(item, error)
            ring.seat(turn, lambda: failed)
            return
        # Only now has every earlier picture been claimed: which of two is the first does not depend on the threads.
        claim = self.repeats.claim if self.repeats is not None else _never
        if (seat := ring.seat(turn, lambda: repeated if claim(item, picture) else None)) is None:
            return
        member: Member = Failed(item, "internal", "This picture was interrupted.")
        try:
            with self.profile.measure("preprocess"):
                geometry = seat.batch.slot.place(seat.row, pixels)
                if geometry.source_hw != source_hw:
                    geometry = geometry.of_whole(source_hw)
            member = Loaded(item, seat.row, geometry, repeated.picture, pixels if self.keeps_pictures else None)
        except Exception as error:
            member = _failure(item, error)
        finally:
            ring.put(seat, member)

    def _pixels(self, picture: Picture) -> tuple[RGBImage, tuple[int, int]]:
        """What the network input is made of, and the size (h, w) of the whole picture; sinks want that itself."""
        if not self.keeps_pictures:
            return picture.reduced(self.settings.decode)
        pixels = picture.pixels(self.settings.decode)
        return pixels, (pixels.shape[0], pixels.shape[1])

    def _infer(self, batch: Batch, finishers: ThreadPoolExecutor) -> Finishing:
        """Carry a batch through the engine and hand its members on, in their order."""
        members = batch.wait()
        rows = [member.row for member in members if isinstance(member, Loaded)]
        with self.profile.measure("infer"):
            found = dict(zip(rows, _infer_rows(batch.slot, rows), strict=True))
        return [
            finishers.submit(self._finish, member, found[member.row]) if isinstance(member, Loaded) else _done(member)
            for member in members
        ]

    def _finish(self, loaded: Loaded, raw: Row | Exception) -> Outcome:
        settings, item = self.settings, loaded.item
        if isinstance(raw, Exception):
            return Failed(item, "engine", str(raw) or repr(raw))
        try:
            with self.profile.measure("postprocess"):
                model = self.model
                finisher = model.for_picture(item.file_name) if isinstance(model, AskedByPicture) else model
                result = finisher.finish(raw, loaded.geometry, class_filter=settings.class_filter, post=settings.post)
                record = self._record(loaded, result)
        except Exception as error:
            return _failure(item, error)
        return self._write(record)

    def _write(self, record: Record) -> Record | Failed:
        """Write the files of one picture. Raises OSError for what is not due to the picture."""
        try:
            with self.profile.measure("write"):
                for sink in self.sinks:
                    sink.write(record)
        except OSError as error:
            if error.errno is not None and error.errno not in NAME_ERRNO:  # an encoder's own has none
                raise
            return Failed(record.item, "unwritable", f"{type(error).__name__}: {error}")
        except Exception as error:
            return _failure(record.item, error)
        return record

    def _record(self, loaded: Loaded, result: Result) -> Record:
        item, picture = loaded.item, loaded.picture
        row = to_row(item, result, sha256=picture.sha256, labels=self.labels, extra=picture.extra)
        encoded = picture.content if self.keeps_pictures and isinstance(picture.content, bytes) else None
        return Record(item, row, result, encoded, loaded.pixels)

    def _commit(self, outcome: Outcome) -> None:
        if isinstance(outcome, Repeated):
            outcome = self._recall(outcome)
        if isinstance(outcome, Failed):
            self.job.add_failure(outcome.item, outcome.reason, outcome.message)
        else:
            for sink in self.sinks:
                sink.commit(outcome)
            self.job.add_result(outcome.row)
        if self.repeats is not None:
            self.repeats.take(outcome)

    def _recall(self, repeated: Repeated) -> Record | Failed:
        """The result of an earlier picture with the same bytes, written as that of this one."""
        assert self.repeats is not None
        try:
            record = self.repeats.recall(repeated)
        except Exception as error:
            return _failure(repeated.item, error)
        return self._write(record) if isinstance(record, Record) else record


def _num_slots(settings: PipelineSettings, lanes: int) -> int:
    """One per lane, one that is being finished, and those that the loading threads can be filling."""
    return lanes + 1 + -(-settings.workers // settings.batch)


def _infer_rows(slot: Slot, rows: list[int]) -> list[Row | Exception]:
    """Raw outputs of each row, or why there are none; a batch that fails is tried one by one."""
    try:
        return list(slot.infer(rows)) if rows else []
    except Exception as error:
        return [error] if len(rows) == 1 else [_infer_rows(slot, [row])[0] for row in rows]


def _never(item: Item, picture: Picture) -> bool:
    return False


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future


def _failure(item: Item, error: Exception) -> Failed:
    if isinstance(error, ImageError):
        return Failed(item, error.reason, str(error))
    if isinstance(error, BackendError):
        return Failed(item, "engine", str(error))
    if isinstance(error, UsageError):
        return Failed(item, "unusable", str(error))
    return Failed(item, "internal", f"{type(error).__name__}: {error}")
