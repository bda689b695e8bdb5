"""Check on this machine that a bundle reproduces the model that it was made from.

Needs neither the checkpoint nor torch: the bundle holds the outputs of every stage of the source model on a few
pictures. The table names every check with its measured value and its limit; all of it goes to BUNDLE/verify.json. Exit
code: 0 all checks passed, 1 a stage differs, 2 the bundle or a flag cannot be used.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vtk.cli.text import printable
from vtk.engines.open import ALL_BACKENDS
from vtk.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.table import Table

    from vtk.verify_report import Report

HELP = "check a bundle against its source model"
PLAIN_WIDTH = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """BUNDLE and the options below."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder made by 'vtk export'")
    parser.add_argument("--images", metavar="DIR", type=Path, help="also compare the batch sizes on these pictures")
    parser.add_argument(
        "--checkpoint", metavar="FILE", type=Path, help="with --images: compare with the source model (needs torch)"
    )
    parser.add_argument(
        "--annotations",
        metavar="FILE",
        type=Path,
        help="with both: COCO annotations of the pictures, to compare the AP of the source model and the bundle",
    )
    parser.add_argument("--batches", metavar="N,…", help="batch sizes to check (default: all of the bundle)")
    parser.add_argument("--backend", choices=ALL_BACKENDS, default="auto", help="engine (default: auto)")
    parser.add_argument("--device", metavar="NAME", default="auto", help="auto, cpu, cuda (default: auto)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Verify, print, and fail with the first stage that differs."""
    from rich.markup import escape

    from vtk.cli.terminal import console
    from vtk.verification import verify

    batches = None if args.batches is None else parse_batches(args.batches, "--batches")
    with progress_line(console(stderr=True), f"verify {args.bundle}") as progress:
        report = verify(
            args.bundle,
            images=args.images,
            checkpoint=args.checkpoint,
            annotations=args.annotations,
            backend=args.backend,
            device=args.device,
            batches=batches,
            progress=progress,
        )
    screen = console()
    if args.json:
        screen.out(json.dumps(report.to_json(), indent=2), highlight=False)
    else:
        print_report(screen, report)
    if report.not_saved:
        warning = f"the report was not saved in the bundle: {report.not_saved}"
        console(stderr=True).print(f"[yellow]{escape(warning)}[/]", highlight=False, soft_wrap=True)
    if report.first_failure is not None:
        raise VerifyError(f"{args.bundle}: first stage that differs: {report.first_failure}.")
    return 0


def parse_batches(text: str, flag: str) -> tuple[int, ...]:
    """`1,8` as numbers, each once and ascending; raises UsageError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) <= 5 and int(part) > 0 for part in parts):
        raise UsageError(f"{flag} takes batch sizes above 0, for example 1,8; got '{text}'.")
    return tuple(sorted({int(part) for part in parts}))


@contextmanager
def progress_line(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """A status line on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")


def print_report(console: Console, report: Report) -> None:
    """The table of checks, and what they ran on."""
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(_table(report))
    batches = ", ".join(map(str, report.batches))
    failed = sum(not check.passed for check in report.checks)
    verdict = "[bold red]FAILED[/]" if failed else "[bold green]verified[/]"
    console.print(
        f"{verdict}: {len(report.checks) - failed} of {len(report.checks)} checks passed "
        f"({report.backend} on {report.device}, batch {batches}, {report.pictures} pictures)",
        highlight=False,
    )


def _table(report: Report) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, highlight=False)
    for title in ("", "stage", "check", "measured", "limit", "worst at"):
        table.add_column(title, justify="right" if title in ("measured", "limit") else "left", overflow="fold")
    for check in report.checks:
        mark = "[green]ok[/]" if check.passed else "[bold red]FAIL[/]"
        numbers = (f"{check.measured:.3g}", f"{check.limit:.3g}")
        table.add_row(mark, check.stage, escape(check.subject), *numbers, escape(printable(check.detail)))
    return table
