"""`run` as a function: a plan of pictures through an open predictor into one resumable folder."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from vtk.bundle import Bundle, Manifest
from vtk.errors import OutputError
from vtk.inputs import Plan
from vtk.jobs import Job, open_job
from vtk.naming import utf8
from vtk.pipeline import Model, Pipeline, PipelineSettings
from vtk.sinks.base import OutputFolder, Sink
from vtk.sinks.coco import read_image_ids
from vtk.sinks.registry import ALL_OUTPUTS, SinkOptions, make_sinks


class OpenModel(Model, Protocol):
    """A predictor: the pipeline's model with the bundle it was opened from and what really runs it."""

    bundle: Bundle
    batch_sizes: tuple[int, ...]
    backend: str
    device: str


@dataclass(frozen=True, kw_only=True)
class RunOptions(PipelineSettings):
    """formats: names that `check_formats` has passed. patches: store dense features too. coco_images: take image ids
    from this COCO file. overwrite: delete the job that is in the folder.
    """

    formats: tuple[str, ...]
    patches: bool = False
    coco_images: Path | None = None
    overwrite: bool = False


@dataclass(frozen=True)
class Summary:
    """What a run has come to. `num_results` and `failures` (reason → count) are of the whole job, the rest of this run.

    complete: every picture of the plan has a row and the files made at the end are there.
    """

    num_results: int
    failures: Mapping[str, int]
    num_new: int
    seconds: float
    complete: bool

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


OnProgress: TypeAlias = Callable[[int, int], None]


def run_job(model: OpenModel, plan: Plan, out: Path, options: RunOptions, on_progress: OnProgress) -> Summary:
    """Start or go on with the job in `out`; `on_progress(done, failed)` is called after every batch.

    Raises UsageError when `out` holds another job, InputError when `coco_images` does not fit the plan,
    MissingDependencyError when a format needs a package, OutputError when results cannot be written.
    """
    manifest = model.bundle.manifest
    ids = None if options.coco_images is None else read_image_ids(options.coco_images, plan)
    digest = str(manifest.source["tensor_digest"])
    made = SinkOptions(OutputFolder(out), manifest.task, manifest.labels, digest, options.decode, options.patches, ids)
    sinks = make_sinks(options.formats, made)
    request, notes = _request(model, plan, options), _notes(model, options)
    try:
        with open_job(out, request, notes=notes, outputs=ALL_OUTPUTS, overwrite=options.overwrite) as job:
            return _carry(model, plan, job, sinks, options, on_progress)
    except OSError as error:
        raise OutputError(
            f"Results cannot be written to {out}: {error.strerror}.", hint="Run the same command again to go on."
        ) from error


def _carry(
    model: OpenModel, plan: Plan, job: Job, sinks: list[Sink], options: RunOptions, on_progress: OnProgress
) -> Summary:
    for sink in sinks:
        sink.rewind(job.results.count, job.results.rows)
    start, before = time.monotonic(), job.num_done
    on_progress(job.num_done, job.num_failed)
    with plan.open_reader() as reader:
        pipeline = Pipeline(model, model.bundle.manifest.labels, job, sinks, options, reader)
        complete = pipeline.run(plan.items, lambda: on_progress(job.num_done, job.num_failed))
    if complete:
        for sink in sinks:
            sink.finish(job.results.count, job.results.rows)
    seconds = time.monotonic() - start
    return Summary(job.results.count, Counter(job.reasons), job.num_done - before, seconds, complete)


def _request(model: OpenModel, plan: Plan, options: RunOptions) -> dict[str, Any]:
    """Everything that decides the results, as JSON data: what a job must share with the one it goes on with."""
    return {
        **_identity(model.bundle.manifest),
        "backend": model.backend,
        "device": model.device,
        "formats": sorted(options.formats),
        "post": options.post.to_json(),
        "classes": None if options.class_filter is None else sorted(options.class_filter),
        "decode": asdict(options.decode),
        "patches": options.patches,
        "coco_images": None if options.coco_images is None else utf8(str(options.coco_images)),
        "inputs": {"root": utf8(plan.root), "pictures": len(plan.items), "digest": plan.digest},
    }


def _identity(manifest: Manifest) -> dict[str, Any]:
    return {
        "task": manifest.task,
        "tensor_digest": manifest.source["tensor_digest"],
        "graphs": sorted(artifact.sha256 for artifact in manifest.artifacts),
        "recipe": manifest.recipe.digest,
        "labels": hashlib.sha256(repr(manifest.labels).encode(errors="backslashreplace")).hexdigest(),
    }


def _notes(model: OpenModel, options: RunOptions) -> dict[str, Any]:
    manifest = model.bundle.manifest
    return {
        "bundle": utf8(str(model.bundle.root)),
        "family": manifest.family,
        "variant": manifest.variant,
        "batch": options.batch,
        "workers": options.workers,
        "vtk_version": version("vtk-deploy"),
    }
