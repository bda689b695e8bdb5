"""Pictures of a job whose bytes an earlier one had: they get its result without being computed again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

from vtk.bundle import Label, Task
from vtk.items import Item
from vtk.jobs import Job
from vtk.postprocess.results import Result
from vtk.ring import Failed, Repeated
from vtk.sinks.base import Record, Row, Sink
from vtk.sinks.rows import result_of, to_row
from vtk.sources.base import Picture


class Repeats:
    """Which bytes a job has met, in about 200 bytes of memory per picture; what is in the job already counts.

    `claim` is called in input order, `take` and `recall` in input order by the thread that commits.
    """

    def __init__(self, job: Job, sinks: Sequence[Sink], labels: tuple[Label, ...], task: Task) -> None:
        self._job = job
        self._sinks = sinks
        self._labels = labels
        self._task = task
        self._on_way: dict[int, bytes] = {}
        self._failed: dict[bytes, Failed] = {}
        # Where the result of the first picture is among those of the job; None while it is on its way or failed.
        self._places: dict[bytes, int | None] = {}
        # Where in the log each result begins.
        self._starts = array("Q")
        for place, (start, row) in enumerate(job.results.rows_with_starts()):
            self._starts.append(start)
            self._places.setdefault(_key(row["sha256"]), place)

    def claim(self, item: Item, picture: Picture) -> bool:
        """Whether an earlier picture had these bytes; if not, this one is the first."""
        if _key(picture.sha256) in self._places:
            return True
        key = self._on_way[item.index] = _key(picture.sha256)
        self._places[key] = None
        return False

    def has(self, picture: Picture) -> bool:
        """Whether a picture with these bytes has been claimed, without claiming it."""
        return _key(picture.sha256) in self._places

    def take(self, outcome: Record | Failed) -> None:
        """Remember what has become of a picture that has just been committed."""
        if isinstance(outcome, Record):
            self._starts.append(self._job.results.last_start)
        key = self._on_way.pop(outcome.item.index, None)
        if key is None:
            return
        if isinstance(outcome, Failed):
            self._failed[key] = outcome
        else:
            self._places[key] = self._job.results.count - 1

    def recall(self, repeated: Repeated) -> Record | Failed:
        """The result of the first picture with these bytes as that of this one, or the same failure."""
        picture, item = repeated.picture, repeated.item
        key = _key(picture.sha256)
        place = self._places[key]
        if place is None:
            return replace(self._failed[key], item=item)
        first = self._job.results.row(self._starts[place])
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


def _key(sha256: str) -> bytes:
    """In the least memory."""
    return bytes.fromhex(sha256)
