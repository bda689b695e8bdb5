"""Folder jobs on a Ray cluster: paths travel, workers decode and hold the engines, shards are merged at the end.

A job is cut into shards by the names of its pictures, as `vtk run --shard` does. Each shard is a job of its own in
OUT.shards, on storage that all machines share, so a worker that is killed, or the whole cluster, loses nothing: whoever
takes the shard next goes on where it stopped. The merged folder is what one machine would have written.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import ray
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from vtk.errors import BackendError, UsageError, VtkError
from vtk.inputs import Plan
from vtk.job_request import OpenModel, RunOptions
from vtk.jobs import JOB_FILE
from vtk.merging import merge_jobs, read_shards
from vtk.ray.cluster import RayWorkers, connected
from vtk.run import OnProgress, Summary, run_job
from vtk.shards import Shard

PICTURES_PER_SHARD = 500

OpenFunction: TypeAlias = Callable[[], AbstractContextManager[OpenModel]]


def run_on_ray(
    open_model: OpenFunction, plan: Plan, out: Path, options: RunOptions, where: RayWorkers, on_progress: OnProgress
) -> Summary:
    """Start or go on with the job in `out`; `on_progress(done, failed)` is called after every shard.

    open_model: what every worker calls to open its own engine; it travels to them. Raises UsageError for options that
    a job in parts cannot have, BackendError when Ray fails, and what `run_job` raises.
    """
    if options.shard is not None or options.max_errors is not None:
        raise UsageError("--shard and --max-errors do not go with --ray, which cuts the job into shards by itself.")
    shards = out.with_name(f"{out.name}.shards")
    if options.overwrite:
        shutil.rmtree(shards, ignore_errors=True)
    elif (out / JOB_FILE).is_file() and not shards.exists():
        with open_model() as model:  # merged before: the job itself knows whether it is this one
            return run_job(model, plan, out, options, on_progress)
    count = max(1, math.ceil(len(plan.items) / PICTURES_PER_SHARD))
    with connected(where):
        _do_shards(_ShardTask(open_model, plan, shards, replace(options, overwrite=False), count), where, on_progress)
    parts = [shards / str(number) for number in range(1, count + 1)]
    summary = merge_jobs(read_shards(parts), out, on_progress, overwrite=options.overwrite)
    shutil.rmtree(shards)
    return summary


class _ShardTask:
    """What all workers share."""

    def __init__(self, open_model: OpenFunction, plan: Plan, root: Path, options: RunOptions, count: int) -> None:
        self.open_model = open_model
        self.plan = plan
        self.root = root
        self.options = options
        self.count = count


class _Worker:
    """One process of the cluster: an open model that does shards, one row of the dataset each."""

    def __init__(self, task: ray.ObjectRef[_ShardTask]) -> None:
        self._task: _ShardTask = ray.get(task)
        self._context = self._task.open_model()
        self._model = self._context.__enter__()

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        task, number = self._task, int(row["item"])
        options = replace(task.options, shard=Shard(number, task.count))
        summary = run_job(self._model, task.plan, task.root / str(number), options, lambda done, failed: None)
        return {"done": summary.num_results + summary.num_failed, "failed": summary.num_failed}


def _do_shards(task: _ShardTask, where: RayWorkers, on_progress: OnProgress) -> None:
    numbers = list(range(1, task.count + 1))
    # A worker that is lost is started again, and its shard given to it or another one.
    dataset = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(
        _Worker,
        fn_constructor_args=(ray.put(task),),
        compute=ActorPoolStrategy(size=min(where.workers, len(numbers))),
        num_cpus=where.num_cpus,
        num_gpus=where.num_gpus,
    )
    total: Counter[str] = Counter()
    try:
        for row in dataset.iter_rows():
            total.update(row)
            on_progress(total["done"], total["failed"])
    except RayError as error:
        raise _cause(error) from error


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
