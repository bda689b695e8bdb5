"""Run a bundle over folders, patterns, lists and files of pictures.

Every picture becomes a row of OUT/results.jsonl or, with its reason, of OUT/ledger.jsonl. The same command again goes
on where a stopped run ended.
Exit code: 0 all pictures done, 1 some failed (0 with --keep-going) or --max-errors stopped the run, 2 nothing could be
done as asked, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.errors import UsageError

if TYPE_CHECKING:
    from vtk.bundle import Label, Manifest
    from vtk.postprocess.recipe import PostRecipe
    from vtk.preprocess.decode import DecodeOptions
    from vtk.run import RunOptions, Summary

HELP = "run a bundle over pictures"
MAX_WORKERS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BUNDLE INPUT… -o OUT and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder made by 'vtk export'")
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help="folder (walked, hidden names left out), quoted pattern, file, or list of paths (@FILE or FILE.txt)",
    )
    parser.add_argument("-o", "--out", metavar="OUT", type=Path, required=True, help="folder of this job")
    parser.add_argument(
        "--format",
        metavar="NAME,…",
        default="",
        help="boxes: jsonl (default), coco, yolo, csv, parquet, crops, annotated; with masks also masks; "
        "classes: jsonl (default), csv, parquet; embeddings: parquet (default), npz",
    )
    _add_result_arguments(parser.add_argument_group("results"))
    _add_picture_arguments(parser.add_argument_group("pictures"))
    _add_job_arguments(parser.add_argument_group("job"))


def _add_result_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--score", metavar="X", type=_fraction, help="keep detections with a score above X")
    group.add_argument("--classes", metavar="NAME|INDEX,…", help="keep these classes, by name or class index")
    group.add_argument("--max-detections", metavar="N", type=_positive, help="at most N detections per picture")
    group.add_argument("--top-k", metavar="N", type=_positive, help="classification: the N best classes")
    group.add_argument("--patches", action="store_true", help="embedding: also store dense features")
    group.add_argument("--coco-images", metavar="FILE", type=Path, help="take image ids from this COCO file")


def _add_picture_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--allow-truncated", action="store_true", help="use what there is of a cut-off file")
    group.add_argument(
        "--alpha", metavar="COLOR", default="drop", help="lay transparent pictures on COLOR (default: drop alpha)"
    )
    group.add_argument("--max-pixels", metavar="N", type=_positive, help="refuse pictures with more pixels")


def _add_job_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch", metavar="N", type=_positive, help="one of the bundle's batch sizes (default: largest)"
    )
    group.add_argument("--backend", choices=("auto", "ort", "openvino"), default="auto", help="engine (default: auto)")
    group.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu, cuda, … (default: auto)")
    group.add_argument("--workers", metavar="N", type=_positive, help="decode threads (default: CPUs, at most 8)")
    group.add_argument("--max-errors", metavar="N", type=_count, help="stop after more than N failed (default: never)")
    group.add_argument("--keep-going", action="store_true", help="exit 0 although pictures failed")
    group.add_argument("--overwrite", action="store_true", help="delete the results of the job in OUT and start again")


def run(args: argparse.Namespace) -> int:
    """Parse, run, print; returns the exit code."""
    from vtk.bundle import read_bundle
    from vtk.cli.run_screen import print_start, print_summary, progress, told_how_to_go_on
    from vtk.cli.terminal import console
    from vtk.inputs import expand
    from vtk.predictor import open_predictor
    from vtk.run import run_job
    from vtk.sinks.registry import output_paths

    bundle = read_bundle(args.bundle)
    options = run_options(args, bundle.manifest)
    plan = expand(args.inputs, exclude=args.out)
    batches = None if args.batch is None else [args.batch]
    screen = console(stderr=True)
    with open_predictor(bundle, backend=args.backend, device=args.device, batches=batches) as predictor:
        print_start(screen, plan, f"{predictor.backend} on {predictor.device}, batch {options.batch}")
        with progress(screen, len(plan.items)) as on_progress, told_how_to_go_on(screen):
            summary = run_job(predictor, plan, args.out, options, on_progress)
    print_summary(console(), summary, plan, args.out, output_paths(options.formats, bundle.manifest.task))
    return exit_code(summary, keep_going=args.keep_going)


def exit_code(summary: Summary, *, keep_going: bool) -> int:
    """0 when all pictures are done, 1 when some failed (unless `keep_going`) or the run was stopped."""
    if not summary.complete:
        return 1
    return 1 if summary.num_failed and not keep_going else 0


def run_options(args: argparse.Namespace, manifest: Manifest) -> RunOptions:
    """The frozen options of one command; raises UsageError for values that do not fit the bundle."""
    from vtk.run import RunOptions
    from vtk.sinks.registry import check_formats

    names = [name.strip() for name in args.format.split(",") if name.strip()]
    _check_task(args, names, manifest)
    return RunOptions(
        formats=check_formats(names, manifest.task),
        post=_post(args, manifest),
        class_filter=None if args.classes is None else parse_classes(args.classes, manifest.labels),
        decode=_decode(args),
        batch=args.batch or max(manifest.batches),
        workers=args.workers or min(MAX_WORKERS, os.cpu_count() or 1),
        max_errors=args.max_errors,
        patches=args.patches,
        coco_images=args.coco_images,
        overwrite=args.overwrite,
    )


def _check_task(args: argparse.Namespace, formats: Sequence[str], manifest: Manifest) -> None:
    """Refuse an option that would have no effect."""
    flags = {
        "score": "detect",
        "classes": "detect",
        "max_detections": "detect",
        "coco_images": "detect",
        "top_k": "classify",
        "patches": "embed",
    }
    for name, task in flags.items():
        if getattr(args, name) not in (None, False) and manifest.task != task:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is for bundles of task '{task}'; this one is '{manifest.task}'.")
    if args.coco_images is not None and "coco" not in formats:
        raise UsageError("--coco-images needs --format coco.")
    if args.patches and manifest.grid_hw is None:
        raise UsageError("--patches: this model has no dense features.")


def _post(args: argparse.Namespace, manifest: Manifest) -> PostRecipe:
    asked = {
        "score_threshold": args.score,
        "max_detections": args.max_detections,
        "top_k": args.top_k,
    }
    return replace(manifest.post, **{name: value for name, value in asked.items() if value is not None})


def _decode(args: argparse.Namespace) -> DecodeOptions:
    from vtk.preprocess.decode import DecodeOptions, parse_alpha

    options = DecodeOptions(allow_truncated=args.allow_truncated, alpha=parse_alpha(args.alpha))
    return options if args.max_pixels is None else replace(options, max_pixels=args.max_pixels)


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


def _positive(text: str) -> int:
    value = _count(text)
    if value < 1:
        raise argparse.ArgumentTypeError("expected a whole number above 0, got 0")
    return value


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, got '{text}'")
    return int(text)


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got '{text}'")
    return value
