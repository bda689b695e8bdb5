"""What becomes of the pictures of a job: a result with its files, or a reason, and then a row of the job."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TypeAlias

from vtk.bundle import Label
from vtk.errors import BackendError, ImageError, UsageError
from vtk.items import Item
from vtk.jobs import Job
from vtk.pipeline_model import AskedByPicture, Model, PipelineSettings
from vtk.postprocess.results import Result
from vtk.profile import Profile
from vtk.repeats import Repeats
from vtk.ring import Failed, Loaded, Repeated
from vtk.sinks.base import Record, Sink
from vtk.sinks.rows import to_row
from vtk.slots import Row

# What the name of one picture's file may be refused with, by the file system or by what is there already.
NAME_ERRNO = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST})

Outcome: TypeAlias = Record | Failed | Repeated


class Outcomes:
    """Makes and writes results, on any number of threads, and commits them, on one.

    A picture whose files cannot be written is `unwritable` in the ledger if that is due to itself and would happen
    again: a name that is refused, a size that the format cannot hold. Any other failure to write is raised before that
    picture is committed, so that it is done when the job goes on.
    """

    def __init__(
        self,
        model: Model,
        labels: tuple[Label, ...],
        job: Job,
        sinks: Sequence[Sink],
        settings: PipelineSettings,
        repeats: Repeats | None,
        profile: Profile,
    ) -> None:
        self.model = model
        self.labels = labels
        self.job = job
        self.sinks = sinks
        self.settings = settings
        self.repeats = repeats
        self.profile = profile
        self.keeps_pictures = any(sink.wants_picture for sink in sinks)

    @property
    def too_many_failed(self) -> bool:
        """Whether more than `max_errors` pictures of the job have failed."""
        limit = self.settings.max_errors
        return limit is not None and self.job.num_failed > limit

    def finish(self, loaded: Loaded, raw: Row | Exception) -> Outcome:
        """Make the result of a picture from its raw outputs, or from why there are none, and write its files.

        Raises OSError for what is not due to the picture.
        """
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
            return failure(item, error)
        return self._write(record)

    def commit(self, outcome: Outcome) -> None:
        """Enter the next picture of the job. Raises OSError when that cannot be written."""
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
            return failure(record.item, error)
        return record

    def _record(self, loaded: Loaded, result: Result) -> Record:
        item, picture = loaded.item, loaded.picture
        row = to_row(item, result, sha256=picture.sha256, labels=self.labels, extra=picture.extra)
        encoded = picture.content if self.keeps_pictures and isinstance(picture.content, bytes) else None
        return Record(item, row, result, encoded, loaded.pixels)

    def _recall(self, repeated: Repeated) -> Record | Failed:
        """The result of an earlier picture with the same bytes, written as that of this one."""
        assert self.repeats is not None
        try:
            record = self.repeats.recall(repeated)
        except Exception as error:
            return failure(repeated.item, error)
        return self._write(record) if isinstance(record, Record) else record


def failure(item: Item, error: Exception) -> Failed:
    """A picture that ended in an error, with the word that ledgers have for it."""
    if isinstance(error, ImageError):
        return Failed(item, error.reason, str(error))
    if isinstance(error, BackendError):
        return Failed(item, "engine", str(error))
    if isinstance(error, UsageError):
        return Failed(item, "unusable", str(error))
    return Failed(item, "internal", f"{type(error).__name__}: {error}")
