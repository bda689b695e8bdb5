"""Run a bundle over pictures in folders, archives, tables, videos and stores, or over a folder that keeps filling.

Every picture becomes a row of OUT/results.jsonl or, with its reason, of OUT/ledger.jsonl. The same command again goes
on where a stopped run ended.
Exit code: 0 all pictures done, 1 some failed (0 with --keep-going) or --max-errors stopped the run, 2 nothing could be
done as asked, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from vtk.cli.input_options import (
    INPUTS_HELP,
    add_input_arguments,
    add_tile_arguments,
    camera_options,
    check_effect,
    plan_of,
)
from vtk.cli.run_arguments import (
    add_engine_arguments,
    add_job_arguments,
    add_picture_arguments,
    add_result_arguments,
)
from vtk.cli.run_ray import add_ray_arguments, check_ray, run_over_ray
from vtk.cli.text import counted

if TYPE_CHECKING:
    from vtk.bundle import Bundle
    from vtk.cores import CoreSplit
    from vtk.job_request import OpenModel, RunOptions
    from vtk.run import Summary
    from vtk.sources.camera import CameraOptions
    from vtk.watching import WatchOptions

    Work: TypeAlias = Callable[[OpenModel], Summary]

HELP = "run a bundle over pictures"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BUNDLE INPUT… -o OUT and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder made by 'vtk export'")
    parser.add_argument("inputs", metavar="INPUT", nargs="*", help=INPUTS_HELP)
    parser.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="folder of this job")
    add_input_arguments(parser.add_argument_group("inputs"))
    add_result_arguments(parser.add_argument_group("results"))
    pictures = parser.add_argument_group("pictures")
    add_picture_arguments(pictures)
    add_tile_arguments(pictures)
    add_engine_arguments(parser.add_argument_group("engine"))
    job = parser.add_argument_group("job")
    add_job_arguments(job)
    add_ray_arguments(job)


def run(args: argparse.Namespace) -> int:
    """Parse, run, print; returns the exit code."""
    from vtk.bundle import read_bundle
    from vtk.cli.profile_screen import print_profile
    from vtk.cli.run_options import cores_of, run_options
    from vtk.cli.run_screen import print_faster, print_summary
    from vtk.cli.terminal import console
    from vtk.engines.open import maybe_faster
    from vtk.llm_serving.affinity import pinned
    from vtk.sinks.registry import output_paths

    bundle = read_bundle(args.bundle)
    options = run_options(args, bundle.manifest)
    check_ray(args)
    cpus, cores = cores_of(args)
    if args.ray is not None:
        summary = run_over_ray(bundle, args, options, cores, _opened)
    else:
        work = _work(args, options)
        with pinned(cpus), _opened(bundle, args, options, cores) as model:
            if args.backend == "auto" and (faster := maybe_faster(model.backend, model.device)):
                print_faster(console(stderr=True), args.bundle, faster)
            summary = work(model)
    print_summary(console(), summary, args.out, output_paths(options.formats, bundle.manifest.task))
    if args.profile:
        print_profile(console(), summary.profile, cores.cores)
    return exit_code(summary, keep_going=args.keep_going)


def _work(args: argparse.Namespace, options: RunOptions) -> Work:
    """What is to be done once a model is open, with everything checked that can be checked before."""
    from vtk.cli.run_options import watch_options

    watch, camera = watch_options(args), camera_options(args)
    if camera is not None:
        return _over_camera(args, options, camera)
    if watch is None:
        return _over_inputs(args, options)
    check_effect(args, ())
    return _over_arrivals(args, options, watch)


@contextmanager
def _opened(bundle: Bundle, args: argparse.Namespace, options: RunOptions, cores: CoreSplit) -> Iterator[OpenModel]:
    from vtk.predictor import open_predictor
    from vtk.segmenting.predictor import open_segment_predictor
    from vtk.segmenting.prompted import PromptedModel

    whole = args.batch is None and options.batch == max(bundle.manifest.batches)
    batches = None if whole else [options.batch]
    if options.prompts is None:
        with open_predictor(
            bundle,
            backend=args.backend,
            device=args.device,
            batches=batches,
            threads=cores.threads,
            lanes=cores.lanes,
        ) as predictor:
            yield predictor
        return
    # One lane on all cores: what an image encoder holds while it runs would be there once for each.
    threads = cores.threads * cores.lanes
    with open_segment_predictor(
        bundle, backend=args.backend, device=args.device, batches=batches, threads=threads, cache_bytes=0
    ) as parts:
        yield PromptedModel(parts, options.prompts)


def _over_inputs(args: argparse.Namespace, options: RunOptions) -> Work:
    from vtk.cli.run_screen import print_start, progress, told_how_to_go_on
    from vtk.cli.terminal import console
    from vtk.run import run_job

    plan = plan_of(args)
    if options.prompts is not None:
        options.prompts.check_pictures(plan.items.file_names)
    total = len(plan.items if options.shard is None else options.shard.select(plan.items))
    screen = console(stderr=True)

    def work(model: OpenModel) -> Summary:
        part = "" if options.shard is None else f"shard {options.shard}: {counted(total, 'picture')}; "
        print_start(screen, plan, f"{part}{model.backend} on {model.device}, batch {options.batch}")
        with progress(screen, total) as on_progress, told_how_to_go_on(screen):
            return run_job(model, plan, args.out, options, on_progress)

    return work


def _over_arrivals(args: argparse.Namespace, options: RunOptions, watch: WatchOptions) -> Work:
    from vtk.cli.run_screen import print_watch, progress, told_how_to_go_on
    from vtk.cli.terminal import console, stopped_by_signals
    from vtk.watching import watch_job

    screen = console(stderr=True)

    def work(model: OpenModel) -> Summary:
        print_watch(screen, watch.folder, f"{model.backend} on {model.device}, batch {options.batch}")
        with stopped_by_signals() as stop, progress(screen, None) as on_progress, told_how_to_go_on(screen):
            return watch_job(model, watch, args.out, options, on_progress, stop)

    return work


def _over_camera(args: argparse.Namespace, options: RunOptions, camera: CameraOptions) -> Work:
    from vtk.cli.run_screen import print_camera, print_dropped, progress, told_how_to_go_on
    from vtk.cli.terminal import console, stopped_by_signals
    from vtk.filming import film_job

    screen = console(stderr=True)

    def work(model: OpenModel) -> Summary:
        print_camera(screen, camera.shown, f"{model.backend} on {model.device}, batch {options.batch}")
        with (
            stopped_by_signals() as stop,
            progress(screen, camera.max_frames) as on_progress,
            told_how_to_go_on(screen),
        ):
            summary, dropped = film_job(model, camera, args.out, options, on_progress, stop)
        print_dropped(screen, dropped)
        return summary

    return work


def exit_code(summary: Summary, *, keep_going: bool) -> int:
    """0 when all pictures are done, 1 when some failed (unless `keep_going`) or the run was stopped."""
    if not summary.complete:
        return 1
    return 1 if summary.num_failed and not keep_going else 0
