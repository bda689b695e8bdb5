"""`vtk run --ray`: the same job on the workers of a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from vtk.cli.input_options import plan_of
from vtk.cli.values import positive
from vtk.errors import UsageError

if TYPE_CHECKING:
    from vtk.bundle import Bundle
    from vtk.cores import CoreSplit
    from vtk.job_request import OpenModel, RunOptions
    from vtk.run import Summary

    OpenFunction: TypeAlias = Callable[
        [Bundle, argparse.Namespace, RunOptions, CoreSplit], AbstractContextManager[OpenModel]
    ]

DEFAULT_WORKERS = 2
# What belongs to one process or one folder.
_NOT_IN_PARTS = ("watch", "camera", "shard", "cpu_affinity", "profile")


def add_ray_arguments(group: argparse._ArgumentGroup) -> None:
    """Where the job runs."""
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="local",
        help="on a Ray cluster whose machines see BUNDLE, INPUT and OUT under the same paths (alone: on this one)",
    )
    group.add_argument("--ray-workers", metavar="N", type=positive, help=f"--ray: engines (default: {DEFAULT_WORKERS})")
    group.add_argument("--ray-cpus", metavar="N", type=positive, help="--ray: cores of each (default: an equal share)")


def check_ray(args: argparse.Namespace) -> None:
    """Raises UsageError for options that do not go together, MissingDependencyError without Ray."""
    from vtk.requirements import require

    if args.ray is None:
        for name in ("ray_workers", "ray_cpus"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for --ray.")
        return
    for name in _NOT_IN_PARTS:
        value = getattr(args, name)
        if value is not None and value is not False:
            raise UsageError(f"--{name.replace('_', '-')} does not go with --ray, whose workers do parts of the job.")
    require("ray", "pandas", "pyarrow", needed_for="--ray", extra="ray")


def run_over_ray(
    bundle: Bundle, args: argparse.Namespace, options: RunOptions, cores: CoreSplit, opened: OpenFunction
) -> Summary:
    """The job on the cluster. opened: what opens the model in a worker, with its own share of the cores."""
    from vtk.cli.run_screen import print_start, progress, told_how_to_go_on
    from vtk.cli.terminal import console
    from vtk.cores import split_cores
    from vtk.ray import RayWorkers, run_on_ray

    plan = plan_of(args)
    workers = args.ray_workers or DEFAULT_WORKERS
    share = args.ray_cpus or max(1, cores.cores // workers)
    where = RayWorkers(args.ray, workers, num_cpus=share, num_gpus=1 if args.device.startswith("cuda") else 0)
    split = split_cores(share, workers=args.workers, engine_threads=args.engine_threads)
    options = replace(options, workers=split.workers)
    screen = console(stderr=True)
    print_start(screen, plan, f"Ray at {args.ray}, {workers} workers, batch {options.batch}")
    with progress(screen, len(plan.items)) as on_progress, told_how_to_go_on(screen):
        return run_on_ray(partial(opened, bundle, args, options, split), plan, args.out, options, where, on_progress)
