"""`run` as a function: a plan of pictures through an open predictor into one resumable folder."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from vtk.errors import OutputError, UsageError
from vtk.inputs import Plan
from vtk.items import Item
from vtk.job_request import OpenModel, RunOptions, inputs_of, notes_of, request_of
from vtk.jobs import ALL_INDEXES, Job, open_job
from vtk.pipeline import Pipeline
from vtk.preprocess.decode_gpu import gpu_decoder
from vtk.profile import Profile
from vtk.repeats import Repeats
from vtk.sinks.base import OutputFolder, Reread, Sink, read_file
from vtk.sinks.coco import read_image_ids
from vtk.sinks.registry import ALL_OUTPUTS, SinkOptions, make_sinks
from vtk.sinks.report import add_times
from vtk.sources.reader import Reader
from vtk.sources.video import VideoSource
from vtk.tiled_predictor import as_asked


@dataclass(frozen=True)
class Summary:
    """What a run has come to. `num_results` and `failures` (reason → count) are of the whole job, the rest of this run.

    complete: every picture of the plan has a row and the files made at the end are there. not_come: pictures that the
    prompts name and that have not come, of a job whose pictures are not known beforehand.
    """

    num_results: int
    failures: Mapping[str, int]
    num_new: int
    seconds: float
    complete: bool
    profile: Profile = field(default_factory=Profile, compare=False, repr=False)
    not_come: Sequence[str] = ()

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


OnProgress: TypeAlias = Callable[[int, int], None]


def run_job(model: OpenModel, plan: Plan, out: Path, options: RunOptions, on_progress: OnProgress) -> Summary:
    """Start or go on with the job in `out`; `on_progress(done, failed)` is called after every batch.

    Raises UsageError when `out` holds another job or a format does not fit the inputs, InputError when `coco_images`
    does not fit the plan, MissingDependencyError when a format needs a package, OutputError when results cannot be
    written.
    """
    if "video" in options.formats and not any(isinstance(source, VideoSource) for source in plan.sources):
        raise UsageError("--format video needs a video among the inputs.")
    ids = None if options.coco_images is None else read_image_ids(options.coco_images, plan)
    items: Sequence[Item] = plan.items
    order: Sequence[int] = ALL_INDEXES
    part = None
    if options.shard is not None:
        items = options.shard.select(plan.items)
        order, part = items.order, {"number": options.shard.number, "of": options.shard.of, "pictures": len(items)}
    request = request_of(model, options, inputs_of(plan), part)
    files = plan.files()
    with (
        plan.open_reader() as reader,
        open_run(
            model, out, options, request, image_ids=ids, order=order, reread=_from_plan(plan, reader), inputs=files
        ) as run,
    ):
        complete = run.carry(items, on_progress, reader)
        if complete:
            run.finish()
        return run.summary(complete=complete)


def _from_plan(plan: Plan, reader: Reader) -> Reread:
    return lambda row: reader.read(plan.items[row["index"]])


class Run:
    """An open job with the sinks it writes to and the model that does it."""

    def __init__(self, model: OpenModel, job: Job, sinks: list[Sink], options: RunOptions, *, live: bool) -> None:
        self.model = model
        self.job = job
        self.sinks = sinks
        self.options = options
        self.live = live
        self.profile = Profile()
        self._start, self._before = time.monotonic(), job.num_done
        for sink in sinks:
            sink.rewind(job.results.count, job.results.rows)
        manifest = model.bundle.manifest
        self.repeats = Repeats(job, sinks, manifest.labels, manifest.task) if options.dedupe else None

    def carry(self, items: Sequence[Item], on_progress: OnProgress, reader: Reader) -> bool:
        """Do every item that is not done yet; False when too many have failed."""
        job, labels = self.job, self.model.bundle.manifest.labels
        on_progress(job.num_done, job.num_failed)
        pipeline = Pipeline(
            self.model, labels, job, self.sinks, self.options, reader, repeats=self.repeats, profile=self.profile
        )
        start, before = time.monotonic(), _gpu_counts(self.options)
        try:
            return pipeline.run(items, lambda: on_progress(job.num_done, job.num_failed))
        finally:
            if before is not None:
                self.profile.gpu_decoding = Counter(gpu_decoder().counts) - before
            if "html" in self.options.formats:
                add_times(OutputFolder(job.root), pipeline.profile, time.monotonic() - start)

    def finish(self) -> None:
        """Make the files that need all rows."""
        for sink in self.sinks:
            sink.finish(self.job.results.count, self.job.results.rows)

    def summary(self, *, complete: bool) -> Summary:
        """What has been done since this object was made."""
        job, seconds = self.job, time.monotonic() - self._start
        prompts = self.options.prompts
        return Summary(
            num_results=job.results.count,
            failures=Counter(job.reasons),
            num_new=job.num_done - self._before,
            seconds=seconds,
            complete=complete,
            profile=self.profile,
            not_come=prompts.absent(job.file_names()) if self.live and prompts is not None else (),
        )


def _gpu_counts(options: RunOptions) -> Counter[str] | None:
    """What the GPU decoder of this process has done so far; None if the job does not use it."""
    return Counter(gpu_decoder().counts) if options.decode.device == "gpu" else None


@contextmanager
def open_run(
    model: OpenModel,
    out: Path,
    options: RunOptions,
    request: Mapping[str, Any],
    *,
    image_ids: Mapping[str, int] | None = None,
    order: Sequence[int] = ALL_INDEXES,
    reread: Reread = read_file,
    live: bool = False,
    inputs: Iterable[str] = (),
) -> Iterator[Run]:
    """Start the job of `request` in `out` or go on with it.

    reread: reads the picture of a row again. live: its pictures are not known beforehand. inputs: what it
    reads. Raises as `run_job` says.
    """
    manifest = model.bundle.manifest
    made = SinkOptions(
        out=OutputFolder(out),
        task=manifest.task,
        labels=manifest.labels,
        title=f"{manifest.family} {manifest.variant}",
        model=str(manifest.source["tensor_digest"]),
        decode=options.decode,
        patches=options.patches,
        image_ids=image_ids,
        reread=reread,
        live=live,
    )
    model = as_asked(model, options)
    sinks, notes = make_sinks(options.formats, made), notes_of(model, options)
    with (
        told_when_unwritable(out),
        open_job(
            out, request, notes=notes, outputs=ALL_OUTPUTS, overwrite=options.overwrite, order=order, inputs=inputs
        ) as job,
    ):
        yield Run(model, job, sinks, options, live=live)


@contextmanager
def told_when_unwritable(out: Path) -> Iterator[None]:
    """A disk that is full, gone or closed to us as OutputError."""
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or out
        raise OutputError(
            f"Results cannot be written to {where}: {error.strerror or error}.",
            hint="When that is mended, run the same command again: it goes on where this one stopped.",
        ) from error
