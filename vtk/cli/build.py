"""Build the TensorRT engines of a bundle on this machine, from its ONNX graphs, and enter them in its manifest.

For a bundle that came from elsewhere, or after the library was updated: engines are tied to the GPU, the library's
version and the system. Engines that this machine can run are verified first. Exit code: 0 built, 1 they do not
reproduce the source model, 2 nothing could be built.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.cli.engine_options import (
    add_target_arguments,
    check_triton,
    engine_lines,
    target_request,
    write_triton,
)
from vtk.cli.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from vtk.engine_builds import EngineBuild
    from vtk.verify_report import Report

HELP = "build the TensorRT engines of a bundle"


class BuildScreen:
    """Prints stages, engines and reports. Unlike the screen of `export` it needs no torch."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def stage(self, title: str) -> None:
        self._console.print(f"[bold]{title}[/]", highlight=False)

    def detail(self, text: str) -> None:
        self._console.print(f"  {text}", highlight=False, markup=False, soft_wrap=True)

    def engines(self, built: EngineBuild) -> None:
        for line in engine_lines(built):
            self._console.print(printable(line), highlight=False, soft_wrap=True)

    def verified(self, report: Report) -> None:
        from vtk.cli.verify import print_report

        print_report(self._console, report)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BUNDLE and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder made by 'vtk export'")
    add_target_arguments(parser.add_argument_group("engines"), "this machine's; without one, those of the recipe")


def run(args: argparse.Namespace) -> int:
    """Build with progress on stderr; the last line on stdout is the bundle's path."""
    from vtk.bundle import read_bundle, write_manifest
    from vtk.cli.terminal import console
    from vtk.engine_adding import add_engines, remove_unnamed
    from vtk.engine_recipe import asked_or_recorded

    bundle = read_bundle(args.bundle)
    check_triton(args, args.bundle)
    request = asked_or_recorded(target_request(args), bundle)
    screen = console(stderr=True)
    manifest, built = add_engines(bundle, request, BuildScreen(screen))
    bundle = write_manifest(bundle.root, manifest)
    remove_unnamed(bundle)
    write_triton(args, bundle, screen)
    if built.missing is not None:
        raise built.missing
    console().out(str(bundle.root), highlight=False)
    return 0
