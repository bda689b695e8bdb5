"""What `vtk run` shows on a terminal, in a log file, and of hostile names."""

import io

import pytest
from rich.console import Console

from vtk.cli import run_screen
from vtk.inputs import Plan
from vtk.items import FoundItems, Items


def console(stream: io.StringIO, *, terminal: bool) -> Console:
    return Console(file=stream, force_terminal=terminal, width=100, color_system=None)


def test_a_terminal_gets_a_bar_with_rate_and_failures() -> None:
    stream = io.StringIO()
    with run_screen.progress(console(stream, terminal=True), 10) as on_progress:
        on_progress(2, 0)
        on_progress(10, 3)
    shown = stream.getvalue()
    assert "10/10" in shown
    assert "images/s" in shown
    assert "3 failed" in shown


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(run_screen.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with run_screen.progress(console(stream, terminal=False), 100) as on_progress:
        for done in range(0, 70, 10):
            on_progress(done, 1)
            now[0] += 4
    assert stream.getvalue().splitlines() == [
        "30/100 pictures, 2.5 images/s, 1 failed",
        "60/100 pictures, 2.5 images/s, 1 failed",
    ]


def test_names_cannot_command_the_terminal_or_the_markup() -> None:
    stream = io.StringIO()
    plan = Plan("in", Items(FoundItems(), "in"), {".\x1b[2J": 1, ".[red]": 2}, 0, 0)
    run_screen.print_start(console(stream, terminal=False), plan, "ort on cpu")
    assert "\x1b" not in stream.getvalue()
    assert "2 × .[red]" in stream.getvalue()
