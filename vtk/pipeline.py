"""Pictures through a model with bounded memory: every stage works at the same time, and results come in input order.

Loading threads decode and put each picture straight into a row of a slot; lanes carry full slots through the engine;
finishing threads make results and write their files; the calling thread commits. `vtk/ring.py` ties them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeAlias

from vtk.bundle import Label
from vtk.items import Item
from vtk.jobs import Job
from vtk.outcomes import Outcome, Outcomes, failure
from vtk.pipeline_model import Model, PipelineSettings
from vtk.preprocess.resize import RGBImage
from vtk.profile import Profile
from vtk.repeats import Repeats
from vtk.ring import Batch, Failed, Loaded, Member, Repeated, Ring
from vtk.sinks.base import Sink
from vtk.slots import Row, Slot
from vtk.sources.base import Picture
from vtk.sources.reader import Reader

Finishing: TypeAlias = list[Future[Outcome]]


class Pipeline:
    """Carries the pictures of one job.

    At most `workers` decoded pictures and a few slots are in memory at any moment, however slow a sink is. What cannot
    be written and is not due to its picture stops the job, as `Outcomes` says.
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
        self.job = job
        self.settings = settings
        self.repeats = repeats
        self.profile = profile or Profile()
        self.outcomes = Outcomes(model, labels, job, sinks, settings, repeats, self.profile)
        self.keeps_pictures = self.outcomes.keeps_pictures

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
            finished = [outcome.result() for outcome in inferred.result()]
            for outcome in finished:
                if self.outcomes.too_many_failed:
                    return False
                with self.profile.measure("commit"):
                    self.outcomes.commit(outcome)
            ring.free(batch)
            on_progress()
        return not self.outcomes.too_many_failed

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
            failed = failure(item, error)
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
            member = failure(item, error)
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
        finish = self.outcomes.finish
        return [
            finishers.submit(finish, member, found[member.row]) if isinstance(member, Loaded) else _done(member)
            for member in members
        ]


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
