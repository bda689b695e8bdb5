"""What the command line is attached to: its consoles, its streams, its signals."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from vtk.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console

_ESCAPE = "backslashreplace"


def console(*, stderr: bool = False, width: int | None = None, highlight: bool = True) -> Console:
    """A console that leaves `:x:` in a file's name or a model's answer as it is; rich would make an emoji of it."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, emoji=False, highlight=highlight)


def show_any_text() -> None:
    """Escape what the encoding of a stream cannot show (LC_ALL=C), instead of ending the command there.

    What it cannot read is kept as half a surrogate pair, so that whoever takes the line can refuse that line.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, _ESCAPE), (sys.stderr, _ESCAPE)):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def require_stdout() -> None:
    """Raise OutputError before work whose whole result would be lost: Python has no stream where stdout is closed."""
    if sys.stdout is None:
        raise OutputError("stdout is closed, and the output goes there.", hint="Send it to a file, or to /dev/null.")


def abandon_stdout() -> None:
    """Send what is still buffered for a closed or full stdout nowhere, so that leaving Python does not fail on it."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an exception does, so that scratch files go. Ignored ones (nohup) stay so."""
    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT, SIGTERM or SIGHUP sets; a second one does what it did before the block."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def restore() -> None:
        for number in taken:
            signal.signal(number, before[number])

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        restore()

    for number in taken:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
