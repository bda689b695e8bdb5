"""Entry point of `vtk`: finds the verb, runs it, turns every expected failure into one clear message."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from vtk.cli.terminal import abandon_stdout, console, show_any_text, unwound_by_signals
from vtk.cli.text import printable
from vtk.errors import BackendError, InputError, OutputError, VtkError

VERBS = (
    "inspect",
    "export",
    "build",
    "verify",
    "run",
    "merge",
    "chat",
    "generate",
    "serve",
    "pull-demo",
    "doctor",
    "search",
)
INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. Each verb is a module with `HELP`, `add_arguments(parser)` and `run(args) -> int`."""
    parser = argparse.ArgumentParser(prog="vtk", description="Fast vision and language models around frozen weights.")
    parser.add_argument("--version", action="version", version=f"vtk {version('vtk-deploy')}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        module = import_module(f"vtk.cli.{verb.replace('-', '_')}")
        child = verbs.add_parser(verb, help=module.HELP, description=module.__doc__)
        module.add_arguments(child)
        child.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 done with failures, 2 input that cannot be used."""
    show_any_text()
    try:
        args = build_parser().parse_args(argv)  # imports the verbs, and may be interrupted
        with unwound_by_signals():
            return int(args.run(args))
    except VtkError as error:
        return _tell(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        abandon_stdout()
        return 1
    except MemoryError:
        return _tell(_no_memory())
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _tell(_no_memory())
        if error.filename is not None:
            return _tell(InputError(f"{error.filename}: {error.strerror}."))
        abandon_stdout()
        return _tell(OutputError(f"The output cannot be written: {error.strerror or error}."))


def _no_memory() -> VtkError:
    return BackendError(
        "There is not enough memory.", hint="Free some, or ask for less: a smaller model, cache, batch or picture."
    )


def _tell(error: VtkError) -> int:
    from rich.markup import escape  # not before Ctrl-C is taken care of: it takes longer than all that is above

    screen = console(stderr=True)
    screen.print(f"[bold red]error:[/] {escape(printable(error.message))}", highlight=False, soft_wrap=True)
    if error.hint:
        screen.print(escape(printable(error.hint)), highlight=False, soft_wrap=True)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
