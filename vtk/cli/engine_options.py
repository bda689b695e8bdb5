"""Flags about engines that `export` and `build` share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from vtk.bundle import Bundle
    from vtk.engine_builds import EngineBuild
    from vtk.engine_choice import EngineRequest


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """`--trt --target --no-build --attn --deform --triton`."""
    group = parser.add_argument_group("engines", "TensorRT takes precision from the graph: see --precision.")
    group.add_argument("--trt", action="store_true", help="also build TensorRT or TensorRT-RTX engines")
    add_target_arguments(group, "this machine's; without one, those that TensorRT-RTX takes by default")
    group.add_argument(
        "--attn", choices=("explicit", "fused"), default="explicit", help="how attention is written (default: explicit)"
    )
    group.add_argument(
        "--deform",
        choices=("auto", "gather", "grid_sample"),
        default="auto",
        help="how deformable attention samples (default: gather where TensorRT gets the operator wrong)",
    )


def add_target_arguments(group: argparse._ArgumentGroup, default: str) -> None:
    """`--target --no-build --triton`; default: which GPUs are meant without `--target`."""
    group.add_argument("--target", metavar="SM,…", help=f"GPUs to build for, say sm_89,sm_120 (default: {default})")
    group.add_argument(
        "--no-build", action="store_true", help="write down how to build the engines, and build none here"
    )
    group.add_argument("--triton", metavar="DIR", type=Path, help="also write an NVIDIA Triton model repository")


def engine_request(args: argparse.Namespace) -> EngineRequest | None:
    """What was asked for; None without `--trt`. Raises UsageError for flags that need it."""
    if not args.trt:
        for flag, given in (("--target", args.target is not None), ("--no-build", args.no_build)):
            if given:
                raise UsageError(f"{flag} means nothing without --trt.", hint=f"Add --trt or leave out {flag}.")
        return None
    return target_request(args)


def target_request(args: argparse.Namespace) -> EngineRequest:
    """The request of `--target` and `--no-build`."""
    from vtk.engine_choice import EngineRequest, parse_targets

    return EngineRequest(targets=parse_targets(args.target), build=not args.no_build)


def check_triton(args: argparse.Namespace, bundle: Path | None) -> None:
    """Raise, before any work, the UsageError that `write_triton` would raise about the folder after it."""
    if args.triton is not None:
        from vtk.triton_repository import check_repository

        check_repository(args.triton, bundle)


def write_triton(args: argparse.Namespace, bundle: Bundle, screen: Console) -> None:
    """The model repository, if it was asked for."""
    if args.triton is not None:
        from vtk.triton_repository import write_repository

        for model in write_repository(bundle, args.triton):
            screen.print(f"Triton model: {args.triton / model}", highlight=False, markup=False, soft_wrap=True)


def engine_lines(built: EngineBuild) -> Iterator[str]:
    """What was built, as console markup."""
    from rich.markup import escape

    from vtk.engine_recipe import RECIPE_NAME

    yield from (f"  {escape(line)}" for line in built.lines)
    yield from (f"  [yellow]risk: {escape(warning)}[/]" for warning in built.warnings)
    if not built.lines:
        yield f"  [yellow]no engine was built; how to build them is in {RECIPE_NAME}, and 'vtk build BUNDLE' does it[/]"
