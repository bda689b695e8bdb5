"""Turn a checkpoint into a verified bundle: static ONNX graphs, recipes, labels, and the proof that they agree.

The bundle takes its name only after the graphs have reproduced the source model on real pictures at every batch size;
on any failure nothing is left behind. Below float32 the plan (which nodes stay float32, and why) is printed before, and
the share of half precision as built after; results are then held to the limits of that precision. Exit code: 0 exported
and verified, 1 the verification failed or 8 bits lost too much, 2 the checkpoint or a flag cannot be used, or the graph
cannot be made.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from vtk.cli.engine_options import add_engine_arguments, check_triton, engine_request, write_triton
from vtk.cli.options import add_model_arguments, model_options
from vtk.cli.verify import parse_batches
from vtk.errors import UsageError
from vtk.exporters.precision_terms import PRECISIONS

HELP = "turn a checkpoint into a verified bundle"

# refused with a reason instead of "unrecognized arguments"
_LATER = {
    "--dynamic-batch": "Graphs are static, so that every batch size can be verified.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """CHECKPOINT and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help=".safetensors, .pth, .pt, or a folder")
    parser.add_argument(
        "-o", "--output", metavar="BUNDLE", type=Path, help="folder to make (default: named after the checkpoint)"
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there")
    parser.add_argument("--onnx", action="store_true", help="make ONNX graphs (they always are)")
    parser.add_argument(
        "--batch", metavar="N,…", help="one static graph per batch size (default: 1,8; 1 for a model in parts)"
    )
    parser.add_argument(
        "--opset", metavar="N", type=int, help="ONNX opset, at least 17 (default: 18; 22 with --precision bf16)"
    )
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="of the graphs: fp16 and bf16 keep float32 where rounding changes results, mixed also in the decoder",
    )
    precision.add_argument(
        "--fp16", action="store_const", const="fp16", dest="precision", help="the same as --precision fp16"
    )
    parser.add_argument(
        "--calibrate", metavar="DIR", type=Path, help="pictures for int8 and fp8: ranges, and what is lost on them"
    )
    parser.add_argument(
        "--max-drop",
        metavar="X",
        type=float,
        help="refuse int8 and fp8 that lose more F1, cosine or agreement than this (default: 0.01)",
    )
    parser.add_argument(
        "--images",
        metavar="DIR",
        type=Path,
        help="verify on four pictures of this folder, which the bundle keeps",
    )
    add_model_arguments(parser)
    add_engine_arguments(parser)
    for flag in _LATER:
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Export with progress on stderr; the last line on stdout is the bundle's path."""
    from vtk.cli.terminal import console
    from vtk.requirements import require_export

    _refuse_later(args)
    engines = engine_request(args)
    check_triton(args, args.output)
    batches = None if args.batch is None else parse_batches(args.batch, "--batch")
    options = model_options(args)
    require_export()
    # from here on torch is imported
    from vtk.cli.export_screen import ExportScreen
    from vtk.exporting import ExportSettings, export_bundle
    from vtk.exporting_quantized import DEFAULT_MAX_DROP, Calibration

    calibration = None
    if args.calibrate is not None:
        drop = DEFAULT_MAX_DROP if args.max_drop is None else args.max_drop
        calibration = Calibration(args.calibrate, drop)
    settings = ExportSettings(
        batches=batches,
        opset=args.opset,
        precision=args.precision,
        calibration=calibration,
        weights=args.weights,
        images=args.images,
        force=args.force,
        engines=engines,
        attn=args.attn,
        deform=None if args.deform == "auto" else args.deform,
    )
    started = time.monotonic()
    with ExportScreen(console(stderr=True)) as listener:
        bundle = export_bundle(args.checkpoint, args.output, options, settings, listener)
    write_triton(args, bundle, console(stderr=True))
    size = sum(path.stat().st_size for path in bundle.root.rglob("*") if path.is_file())
    console(stderr=True).print(
        f"[bold green]exported[/] in {time.monotonic() - started:.0f} s, {size / 1e6:.1f} MB", highlight=False
    )
    console().out(str(bundle.root), highlight=False)
    return 0


def _refuse_later(args: argparse.Namespace) -> None:
    if args.max_drop is not None and args.calibrate is None:
        raise UsageError("--max-drop means nothing without --calibrate.", hint="Add --calibrate DIR.")
    for flag, reason in _LATER.items():
        if getattr(args, flag.strip("-").replace("-", "_")):
            hint = "Pass several sizes, say --batch 1,4,8." if flag == "--dynamic-batch" else f"Leave {flag} out."
            raise UsageError(f"{flag} is not available in this version. {reason}", hint=hint)
