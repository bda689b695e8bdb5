"""Folder jobs on a Ray cluster: paths travel, workers decode and hold the engines, shards are merged at the end.

A job is cut into shards by the names of its pictures, as `vtk run --shard` does. Each shard is a job of its own in
OUT.shards, on storage that all machines share, so a worker that is killed, or the whole cluster, loses nothing: whoever
takes the shard next goes on where it stopped. The merged folder is what one machine would have written.

With `max_errors` the failures of all shards are counted in one place, where every worker asks after each batch whether
they are too many. So each of the workers may be a batch further than one machine would be when the job stops.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import ray
from ray.actor import ActorHandle
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from vtk.errors import BackendError, UsageError, VtkError
from vtk.inputs import Plan
from vtk.job_request import OpenModel, RunOptions
from vtk.job_results import Counts, count_rows, total
from vtk.jobs import JOB_FILE, delete_job
from vtk.merging import merge_jobs, read_shards
from vtk.ray.cluster import RayWorkers, connected
from vtk.run import OnProgress, Summary, run_job, told_when_unwritable
from vtk.shards import Shard, shards_folder
from vtk.sinks.registry import ALL_OUTPUTS

PICTURES_PER_SHARD = 500

OpenFunction: TypeAlias = Callable[[], AbstractContextManager[OpenModel]]


def run_on_ray(
    open_model: OpenFunction, plan: Plan, out: Path, options: RunOptions, where: RayWorkers, on_progress: OnProgress
) -> Summary:
    """Start or go on with the job in `out`; `on_progress(done, failed)` is called after every shard.

    open_model: what every worker calls to open its own engine; it travels to them. The job is merged into `out` once
    all shards are done; a summary that is not complete is of the shards beside it. Raises UsageError for options that a
    job in parts cannot have, BackendError when Ray fails, and what `run_job` raises.
    """
    if options.shard is not None:
        raise UsageError("--shard does not go with --ray, which cuts the job into shards by itself.")
    start, shards = time.monotonic(), shards_folder(out)
    if options.overwrite:
        with told_when_unwritable(out):
            delete_job(out, outputs=ALL_OUTPUTS, inputs=plan.files())
        shutil.rmtree(shards, ignore_errors=True)
    elif (out / JOB_FILE).is_file() and not shards.exists():
        with open_model() as model:  # merged before: the job itself knows whether it is this one
            return run_job(model, plan, out, options, on_progress)
    count = max(1, math.ceil(len(plan.items) / PICTURES_PER_SHARD))
    parts = [shards / str(number) for number in range(1, count + 1)]
    before = [count_rows(part) for part in parts]
    with connected(where):
        errors = _count_errors(options, before)
        task = _ShardTask(open_model, plan, shards, replace(options, overwrite=False), before, errors)
        complete = _do_shards(task, where, on_progress)
    if complete:
        merged = merge_jobs(read_shards(parts), out, on_progress)
        found = Counts(merged.num_results, Counter(merged.failures))
        shutil.rmtree(shards)
    else:
        found = total(count_rows(part) for part in parts)
    num_new, seconds = found.num_done - total(before).num_done, time.monotonic() - start
    return Summary(found.num_results, found.failures, num_new, seconds, complete)


@dataclass(frozen=True)
class _ShardTask:
    """What all workers share. before: what each shard held when this run began. errors: None without a limit."""

    open_model: OpenFunction
    plan: Plan
    root: Path
    options: RunOptions
    before: Sequence[Counts]
    errors: ActorHandle | None


class _Errors:
    """The one place where the failures of all shards are counted."""

    def __init__(self, most: int, num_failed: list[int]) -> None:
        self._most = most
        self._num_failed = num_failed

    def are_too_many(self, number: int, num_failed: int) -> bool:
        """Take note of how many one shard has."""
        self._num_failed[number - 1] = num_failed
        return sum(self._num_failed) > self._most


class _Stopped(Exception):
    """Unwinds a shard between two batches."""


class _Meter:
    """How far one shard is; raises _Stopped when too many pictures of the job have failed."""

    def __init__(self, number: int, errors: ActorHandle | None) -> None:
        self.done = self.failed = 0
        self._number = number
        self._errors = errors

    def __call__(self, done: int, failed: int) -> None:
        self.done, self.failed = done, failed
        if self._errors is not None and ray.get(self._errors.are_too_many.remote(self._number, failed)):
            raise _Stopped


class _Worker:
    """One process of the cluster: an open model that does shards, one row of the dataset each."""

    def __init__(self, task: ray.ObjectRef[_ShardTask]) -> None:
        self._task: _ShardTask = ray.get(task)
        self._context = self._task.open_model()
        self._model = self._context.__enter__()
        self._stopped = False

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """How many pictures of a shard are newly done, and have newly failed."""
        if self._stopped:
            return {"done": 0, "failed": 0}
        task, number = self._task, int(row["item"])
        options = replace(task.options, shard=Shard(number, len(task.before)))
        meter, before = _Meter(number, task.errors), task.before[number - 1]
        try:
            summary = run_job(self._model, task.plan, task.root / str(number), options, meter)
            meter(summary.num_results + summary.num_failed, summary.num_failed)
        except _Stopped:
            self._stopped = True
        return {"done": meter.done - before.num_done, "failed": meter.failed - before.num_failed}


def _count_errors(options: RunOptions, before: Sequence[Counts]) -> ActorHandle | None:
    if options.max_errors is None:
        return None
    counter = ray.remote(_Errors).options(num_cpus=0)
    return counter.remote(options.max_errors, [it.num_failed for it in before])


def _do_shards(task: _ShardTask, where: RayWorkers, on_progress: OnProgress) -> bool:
    """Do what is not done of all shards; False when too many pictures have failed."""
    numbers, most, before = list(range(1, len(task.before) + 1)), task.options.max_errors, total(task.before)
    # A worker that is lost is started again, and its shard given to it or another one.
    dataset = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(
        _Worker,
        fn_constructor_args=(ray.put(task),),
        compute=ActorPoolStrategy(size=min(where.workers, len(numbers))),
        num_cpus=where.num_cpus,
        num_gpus=where.num_gpus,
    )
    sums = Counter(done=before.num_done, failed=before.num_failed)
    try:
        for row in dataset.iter_rows():
            sums.update(row)
            on_progress(sums["done"], sums["failed"])
    except RayError as error:
        raise _cause(error) from error
    return most is None or sums["failed"] <= most


def _cause(error: BaseException) -> VtkError:
    """The error of the worker itself, where it raised one of ours."""
    found: BaseException | None = error
    while found is not None:
        inner = getattr(found, "cause", None)
        for candidate in (found, inner):
            if isinstance(candidate, VtkError):
                return candidate
        found = inner if isinstance(inner, BaseException) else found.__cause__
    return BackendError(f"Ray could not finish the job: {str(error).strip().splitlines()[-1]}.")
