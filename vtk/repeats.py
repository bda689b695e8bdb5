"""Pictures of a job whose bytes an earlier one had: they get its result without being computed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vtk.bundle import Label, Task
from vtk.inputs import Item
from vtk.jobs import Job
from vtk.postprocess.results import Result
from vtk.ring import Failed, Repeated
from vtk.sinks.base import Record, Row, Sink
from vtk.sinks.rows import result_of, to_row
from vtk.sources.base import Picture


class Repeats:
    """Which bytes a job has met, in about 300 bytes of memory per picture; what is in the job already counts.

    `claim` is called in input order, `take` and `recall` in input order by the thread that commits.
    """

    def __init__(self, job: Job, sinks: Sequence[Sink], labels: tuple[Label, ...], task: Task) -> None:
        self._job = job
        self._sinks = sinks
        self._labels = labels
        self._task = task
        self._on_way: dict[int, str] = {}
        self._failed: dict[str, Failed] = {}
        # Where the result of the first picture is among those of the job; None while it is on its way or failed.
        self._places: dict[str, int | None] = {}
        for place, row in enumerate(job.results.rows()):
            self._places.setdefault(row["sha256"], place)

    def claim(self, item: Item, picture: Picture) -> bool:
        """Whether an earlier picture had these bytes; if not, this one is the first."""
        if picture.sha256 in self._places:
            return True
        self._places[picture.sha256] = None
        self._on_way[item.index] = picture.sha256
        return False

    def has(self, picture: Picture) -> bool:
        """Whether a picture with these bytes has been claimed, without claiming it."""
        return picture.sha256 in self._places

    def take(self, outcome: Record | Failed) -> None:
        """Remember what has become of a picture that has just been committed."""
        sha256 = self._on_way.pop(outcome.item.index, None)
        if sha256 is None:
            return
        if isinstance(outcome, Failed):
            self._failed[sha256] = outcome
        else:
            self._places[sha256] = self._job.results.count - 1

    def recall(self, repeated: Repeated) -> Record | Failed:
        """The result of the first picture with these bytes as that of this one, or the same failure."""
        picture, item = repeated.picture, repeated.item
        place = self._places[picture.sha256]
        if place is None:
            return replace(self._failed[picture.sha256], item=item)
        first = self._job.results.row(place)
        result = self._result(place, first)
        if result is None:
            return Failed(
                item, "internal", f"The result of {first['file_name']}, which has the same bytes, is not kept."
            )
        extra = {**picture.extra, "duplicate_of": first["index"]}
        row = to_row(item, result, sha256=picture.sha256, labels=self._labels, extra=extra)
        if isinstance(picture.content, bytes):
            return Record(item, row, result, picture.content or None)
        return Record(item, row, result, None, picture.content)

    def _result(self, place: int, row: Row) -> Result | None:
        if self._task != "embed":
            return result_of(row, self._task)
        kept = (sink.recall(place, row) for sink in self._sinks)
        return next((result for result in kept if result is not None), None)
