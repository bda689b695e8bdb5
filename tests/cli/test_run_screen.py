"""What `vtk run` shows on a terminal, in a log file, and of hostile names."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from vtk.cli import run_screen
from vtk.inputs import Plan
from vtk.items import FoundItems, Items
from vtk.run import Summary
from vtk.shards import shards_folder


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


def test_the_ledger_that_is_named_is_there(tmp_path: Path) -> None:
    """A job on a cluster that has stopped has those of its shards only."""
    stopped = Summary(5, {"corrupt": 4}, 9, 1.0, complete=False)
    out, shards = tmp_path / "out", shards_folder(tmp_path / "out")
    for folder, told in ((shards / "1", shards / "*"), (out, out)):
        folder.mkdir(parents=True)
        (folder / "ledger.jsonl").write_bytes(b"")
        stream = io.StringIO()
        run_screen.print_summary(console(stream, terminal=False), stopped, out, ["results.jsonl"])
        assert "Stopped by --max-errors after 9 pictures; run again to go on." in stream.getvalue()
        assert f"  failures  {told / 'ledger.jsonl'}\n" in stream.getvalue()
        assert list(tmp_path.glob((told / "ledger.jsonl").relative_to(tmp_path).as_posix()))


@pytest.mark.parametrize(("count", "told"), [(0, "0 results"), (1, "1 result"), (2, "2 results")])
def test_one_is_not_told_as_many(tmp_path: Path, count: int, told: str) -> None:
    stream = io.StringIO()
    run_screen.print_summary(console(stream, terminal=False), Summary(count, {}, 0, 1.0, complete=True), tmp_path, [])
    assert stream.getvalue() == f"{told}, 0 failed; nothing new\n"


def test_an_odd_suffix_stays_on_its_line() -> None:
    stream = io.StringIO()
    plan = Plan("in", Items(FoundItems(), "in"), {".j\npg": 1}, 0, 0)
    run_screen.print_start(console(stream, terminal=False), plan, "ort on cpu")
    assert stream.getvalue() == "0 pictures (left out: 1 other file (1 × .j\\npg)); ort on cpu\n"
