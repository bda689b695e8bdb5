"""The options of inputs that are no picture files (archives, tables, videos, URLs) and of large pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vtk.cli.values import fraction, positive
from vtk.errors import UsageError

if TYPE_CHECKING:
    from vtk.inputs import Plan
    from vtk.sources.camera import CameraOptions
    from vtk.sources.options import InputOptions
    from vtk.tiling import Tiling

DEFAULT_OVERLAP = 0.2
INPUTS_HELP = (
    "folder (walked, hidden names left out), quoted pattern or braces ('s-{000..010}.tar'), file, archive (.tar, "
    ".tar.gz, .zip), table (.parquet), video, URL of a store (s3://…), list of paths (@FILE or FILE.txt; lines, or "
    "with NULs as of 'find -print0'), - for a list on stdin"
)


def add_input_arguments(group: argparse._ArgumentGroup) -> None:
    """--stride, --image-column and the like."""
    group.add_argument(
        "--stride", metavar="N", type=positive, default=1, help="of a video or camera, take every N-th frame"
    )
    group.add_argument(
        "--camera",
        metavar="ADDRESS",
        help="instead of INPUT: film with /dev/video0 or rtsp://…, until stopped",
    )
    group.add_argument("--max-frames", metavar="N", type=positive, help="--camera: end the job after N frames")
    group.add_argument("--image-column", metavar="NAME", help="of a Parquet table (default: image, or the only one)")
    group.add_argument("--id-column", metavar="NAME", help="of a Parquet table, kept as id (default: image_id, or id)")
    group.add_argument("-0", "--null", action="store_true", help="paths on stdin end in NUL, as of 'find -print0'")
    group.add_argument("--allow-http", action="store_true", help="fetch inputs that are http(s) URLs")


def input_options(args: argparse.Namespace) -> InputOptions:
    """The frozen options of one command."""
    from vtk.sources.options import InputOptions

    return InputOptions(
        stride=args.stride,
        image_column=args.image_column,
        id_column=args.id_column,
        null_separated=args.null,
        allow_http=args.allow_http,
    )


def plan_of(args: argparse.Namespace) -> Plan:
    """The pictures of one command. Raises UsageError for options of inputs that are not there, and as `expand` does."""
    from vtk.inputs import expand

    plan = expand(args.inputs, exclude=args.out, options=input_options(args))
    check_effect(args, [source.path.lower() for source in plan.sources])
    return plan


def check_effect(args: argparse.Namespace, sources: Sequence[str]) -> None:
    """Raise UsageError for an option that has no effect on these sources, told by their paths in lower case."""
    from vtk.scan import STDIN
    from vtk.sources.table import TABLE_SUFFIXES
    from vtk.sources.video import VIDEO_SUFFIXES

    if args.stride != 1 and args.camera is None and not any(path.endswith(VIDEO_SUFFIXES) for path in sources):
        raise UsageError("--stride is for videos, and there is none.")
    for name in ("image_column", "id_column"):
        if getattr(args, name) is not None and not any(path.endswith(TABLE_SUFFIXES) for path in sources):
            raise UsageError(f"--{name.replace('_', '-')} is for Parquet tables, and there is none.")
    if args.null and STDIN not in args.inputs:
        raise UsageError("--null is for paths on stdin.", hint="Name '-' as INPUT.")


def camera_options(args: argparse.Namespace) -> CameraOptions | None:
    """What to film, or None for a run over INPUT. Raises UsageError for both and for options without use."""
    from vtk.sources.camera import CameraOptions

    if args.camera is None:
        if args.max_frames is not None:
            raise UsageError("--max-frames is for --camera.")
        return None
    if args.inputs or args.watch is not None:
        raise UsageError("--camera takes the place of INPUT and of --watch.")
    check_effect(args, ())
    for name in ("shard", "coco_images", "settle", "idle_timeout"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is not for --camera.")
    return CameraOptions(args.camera, args.stride, args.max_frames, args.allow_http)


def add_tile_arguments(group: argparse._ArgumentGroup) -> None:
    """--tile and --overlap."""
    group.add_argument("--tile", metavar="N", type=positive, help="look at pictures in tiles of N x N pixels")
    group.add_argument("--overlap", metavar="X", type=fraction, help="common share of two tiles (default: 0.2)")


def tiling_of(args: argparse.Namespace) -> Tiling | None:
    """How the model looks at large pictures, None for whole ones. Raises UsageError."""
    from vtk.tiling import Tiling

    if args.tile is None:
        if args.overlap is not None:
            raise UsageError("--overlap is for --tile.")
        return None
    overlap = DEFAULT_OVERLAP if args.overlap is None else args.overlap
    return Tiling(args.tile, overlap, args.max_detections)
