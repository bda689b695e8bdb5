"""Say what works on this machine, what is missing, what each missing piece would enable, and how to get it.

Every engine and device that is installed is opened and runs a graph; nothing is changed and no network is used. Exit
code: 0 what is installed works, 1 something that is installed does not.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from vtk.cli.text import printable

if TYPE_CHECKING:
    from vtk.doctor_finding import Finding

HELP = "say what works here and what is missing"
_MARKS = {"ok": "[green]ok[/]", "missing": "[yellow]--[/]", "broken": "[bold red]BROKEN[/]"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--json` alone."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print the findings as JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Examine and print; 1 if something that is installed does not work."""
    from vtk.cli.terminal import console
    from vtk.doctor import examine

    findings = examine()
    screen = console(highlight=False)
    if args.json:
        screen.out(json.dumps([finding.to_json() for finding in findings], indent=2))
    else:
        for finding in findings:
            screen.print(_line(finding), soft_wrap=True)
    return int(any(finding.state == "broken" for finding in findings))


def _line(finding: Finding) -> str:
    from rich.markup import escape

    text = f"{_MARKS[finding.state]} {escape(finding.subject)}: {escape(printable(finding.found))}"
    return f"{text}\n   [dim]{escape(finding.fix)}[/]" if finding.fix else text
