"""From the arguments of `vtk run` to the frozen options of its job."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import replace

from vtk.bundle import Label, Manifest
from vtk.cli.input_options import tiling_of
from vtk.cores import CoreSplit, default_batch, split_cores
from vtk.engines.hosts import this_host
from vtk.errors import BackendError, UsageError
from vtk.job_request import RunOptions
from vtk.llm_serving.affinity import num_usable_cores, parse_cpus
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.decode import DecodeOptions, parse_alpha
from vtk.segmenting.job_prompts import job_prompts
from vtk.shards import parse_shard
from vtk.sinks.registry import check_formats
from vtk.watching import WatchOptions

FINDS_THINGS = ("detect", "segment")
# Options that mean something for bundles of some tasks only.
TASKS = {
    "score": FINDS_THINGS,
    "prompt": ("segment",),
    "boxes": ("segment",),
    "points": ("segment",),
    "classes": ("detect",),
    "max_detections": FINDS_THINGS,
    "coco_images": FINDS_THINGS,
    "tile": FINDS_THINGS,
    "top_k": ("classify",),
    "patches": ("embed",),
}


def run_options(args: argparse.Namespace, manifest: Manifest) -> RunOptions:
    """The options of one command; raises UsageError for values that do not fit the bundle."""
    names = [name.strip() for name in args.format.split(",") if name.strip()]
    _check_task(args, names, manifest)
    return RunOptions(
        formats=check_formats(names, manifest.task),
        post=_post(args, manifest),
        class_filter=None if args.classes is None else parse_classes(args.classes, manifest.labels),
        decode=_decode(args, manifest),
        batch=args.batch or default_batch(manifest.batches, gpu=args.device != "cpu" and this_host().gpu is not None),
        workers=cores_of(args)[1].workers,
        max_errors=args.max_errors,
        patches=args.patches,
        coco_images=args.coco_images,
        overwrite=args.overwrite,
        shard=None if args.shard is None else parse_shard(args.shard),
        dedupe=args.dedupe,
        tiling=tiling_of(args),
        prompts=job_prompts(args.prompt, args.boxes, args.points) if manifest.task == "segment" else None,
    )


def cores_of(args: argparse.Namespace) -> tuple[frozenset[int] | None, CoreSplit]:
    """The cores to bind to, None for all, and what they shall do."""
    cpus = None if args.cpu_affinity is None else parse_cpus(args.cpu_affinity)
    count = num_usable_cores() if cpus is None else len(cpus)
    return cpus, split_cores(count, workers=args.workers, engine_threads=args.engine_threads)


def watch_options(args: argparse.Namespace) -> WatchOptions | None:
    """What to watch, or None for a run over INPUT. Raises UsageError for neither, both, or options without use."""
    if args.watch is None:
        for name in ("settle", "idle_timeout"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} is for --watch.")
        if not args.inputs and args.camera is None:
            raise UsageError("There is no INPUT.", hint="Give folders, patterns, lists or files, or --watch DIR.")
        return None
    if args.inputs:
        raise UsageError(f"--watch takes the place of INPUT; got '{args.inputs[0]}' as well.")
    for name in ("shard", "coco_images"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} needs pictures that are known beforehand, not --watch.")
    options = WatchOptions(args.watch, idle_timeout=args.idle_timeout)
    return options if args.settle is None else replace(options, settle=args.settle)


def _check_task(args: argparse.Namespace, formats: Sequence[str], manifest: Manifest) -> None:
    """Refuse an option that would have no effect."""
    for name, tasks in TASKS.items():
        if getattr(args, name) not in (None, False, []) and manifest.task not in tasks:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is for bundles of task '{tasks[0]}'; this one is '{manifest.task}'.")
    if args.coco_images is not None and "coco" not in formats:
        raise UsageError("--coco-images needs --format coco.")
    for name in ("boxes", "points"):
        if args.dedupe and getattr(args, name) is not None:
            raise UsageError(f"--dedupe and --{name}: equal pictures may have other {name}, and so other results.")
    if args.patches and manifest.grid_hw is None:
        raise UsageError("--patches: this model has no dense features.")


def _post(args: argparse.Namespace, manifest: Manifest) -> PostRecipe:
    asked = {
        "score_threshold": args.score,
        "max_detections": args.max_detections,
        "top_k": args.top_k,
    }
    return replace(manifest.post, **{name: value for name, value in asked.items() if value is not None})


def _decode(args: argparse.Namespace, manifest: Manifest) -> DecodeOptions:
    if args.fast_decode and args.tile is not None:
        raise UsageError("--fast-decode and --tile do not go together.", hint="Tiles need every pixel.")
    if args.decode == "gpu":
        _check_gpu_decoding(args)
    options = DecodeOptions(
        allow_truncated=args.allow_truncated,
        alpha=parse_alpha(args.alpha),
        min_side=max(manifest.recipe.size_hw) if args.fast_decode else None,
        device=args.decode,
    )
    return options if args.max_pixels is None else replace(options, max_pixels=args.max_pixels)


def _check_gpu_decoding(args: argparse.Namespace) -> None:
    """Refuse what it does not go with, and machines that cannot do it, before any work."""
    from vtk.engines.cuda_driver import gpu_target
    from vtk.preprocess.decode_gpu import gpu_decoder

    if args.fast_decode:
        raise UsageError("--fast-decode and --decode gpu do not go together.", hint="The GPU decodes whole pictures.")
    if args.ray is not None:
        raise UsageError("--decode gpu does not go with --ray yet.")
    if gpu_target() is None:
        raise BackendError("--decode gpu needs an NVIDIA GPU, and none can be used here.", hint="Use --decode cpu.")
    gpu_decoder()


def parse_classes(text: str, labels: tuple[Label, ...]) -> frozenset[int]:
    """Class indices from a comma-separated list of names (letter case ignored) and indices."""
    names: dict[str, set[int]] = {}
    for index, label in enumerate(labels):
        names.setdefault(label.name.casefold(), set()).add(index)
    chosen: set[int] = set()
    for word in (part.strip() for part in text.split(",")):
        if word.casefold() in names:
            chosen |= names[word.casefold()]
        elif word.isascii() and word.isdigit() and int(word) < len(labels):
            chosen.add(int(word))
        else:
            raise _unknown_class(word, labels)
    return frozenset(chosen)


def _unknown_class(word: str, labels: tuple[Label, ...]) -> UsageError:
    known = [label.name for label in labels]
    near = difflib.get_close_matches(word, known, n=3) or known[:10]
    shown = ", ".join(near) + (", …" if len(near) < len(known) else "")
    return UsageError(
        f"The bundle has no class '{word}'.",
        hint=f"It has {len(known)}, to be named so or by index from 0: {shown}",
    )
