"""What `vtk run` shows: the plan, progress while it works, and where the results are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vtk.cli.text import counted, one_line, printable
from vtk.inputs import Plan
from vtk.jobs import LEDGER_FILE, RESULTS_FILE
from vtk.run import OnProgress, Summary
from vtk.shards import shards_folder

LINE_SECONDS = 10.0


def print_start(screen: Console, plan: Plan, engine: str) -> None:
    """How many pictures, what was passed over, and what runs them."""
    others = ", ".join(f"{count} × {one_line(suffix)}" for suffix, count in sorted(plan.ignored.items()))
    passed = [
        f"{counted(sum(plan.ignored.values()), 'other file')} ({others})" if others else "",
        counted(plan.hidden, "hidden name") if plan.hidden else "",
        f"{plan.duplicates} named twice" if plan.duplicates else "",
    ]
    notes = "; ".join(note for note in passed if note)
    left_out = f" (left out: {notes})" if notes else ""
    _say(screen, f"{counted(len(plan.items), 'picture')}{left_out}; {engine}")


def print_faster(screen: Console, bundle: Path, backend: str) -> None:
    """Which other engine is worth a try, and how to check it first."""
    _say(
        screen,
        f"{backend} is installed too and often faster on a CPU: if 'vtk verify {bundle} --backend {backend}' passes, "
        f"run with --backend {backend}.",
    )


def print_watch(screen: Console, folder: Path, engine: str) -> None:
    """What is watched, and how it ends."""
    _say(screen, f"Watching {folder}; {engine}. Ctrl-C or SIGTERM ends it.")


def print_camera(screen: Console, address: str, engine: str) -> None:
    """What is filmed, and how it ends."""
    _say(screen, f"Filming {address}; {engine}. Ctrl-C or SIGTERM ends it.")


def print_dropped(screen: Console, count: int) -> None:
    """For how many frames the model was too slow."""
    if count:
        _say(screen, f"Dropped {counted(count, 'frame')} that came while the model was busy; --stride takes fewer.")


@contextmanager
def progress(screen: Console, total: int | None) -> Iterator[OnProgress]:
    """A live bar on a terminal, else a line every ten seconds. total: None when nobody knows it."""
    if not screen.is_terminal:
        yield _Lines(screen, total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=screen) as bar:
        task = bar.add_task("run", total=total, note="")
        meter = _Meter()
        yield lambda done, failed: bar.update(task, completed=done, note=meter.note(done, failed))


def print_summary(console: Console, summary: Summary, out: Path, outputs: Sequence[str]) -> None:
    """Counts, failures by reason, time, and the paths of the results."""
    rate = summary.num_new / summary.seconds if summary.seconds > 0 else 0.0
    work = (
        f"{summary.num_new} new in {summary.seconds:.1f} s, {rate:.1f} images/s" if summary.num_new else "nothing new"
    )
    counts = f"{counted(summary.num_results, 'result')}, {summary.num_failed} failed"
    _say(console, f"{counts}{_by_reason(summary.failures)}; {work}")
    if not summary.complete:
        done = summary.num_results + summary.num_failed
        _say(console, f"Stopped by --max-errors after {counted(done, 'picture')}; run again to go on.")
    if summary.not_come:
        _say(console, _not_come(summary.not_come))
    for name in dict.fromkeys((RESULTS_FILE, *outputs)):
        if (out / name).exists():
            _say(console, f"  results   {out / name}")
    if summary.num_failed:
        whole = (out / LEDGER_FILE).exists()
        _say(console, f"  failures  {(out if whole else shards_folder(out) / '*') / LEDGER_FILE}")


@contextmanager
def told_how_to_go_on(screen: Console) -> Iterator[None]:
    """Tell whoever interrupts the block that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        _say(screen, "Interrupted. Run the same command again to go on.")
        raise


class _Meter:
    """Images per second since the first call."""

    def __init__(self) -> None:
        self.start: tuple[float, int] | None = None

    def note(self, done: int, failed: int) -> str:
        now = time.monotonic()
        if self.start is None:
            self.start = (now, done)
        seconds = now - self.start[0]
        rate = (done - self.start[1]) / seconds if seconds > 0 else 0.0
        return f"{rate:.1f} images/s" + (f", {failed} failed" if failed else "")


class _Lines:
    def __init__(self, screen: Console, total: int | None) -> None:
        self.screen = screen
        self.total = total
        self.meter = _Meter()
        self.last = time.monotonic()

    def __call__(self, done: int, failed: int) -> None:
        note = self.meter.note(done, failed)
        if time.monotonic() - self.last > LINE_SECONDS:
            self.last = time.monotonic()
            of = "" if self.total is None else f"/{self.total}"
            _say(self.screen, f"{done}{of} pictures, {note}")


def _by_reason(failures: Mapping[str, int]) -> str:
    listed = ", ".join(f"{reason} {count}" for reason, count in sorted(failures.items()))
    return f" ({listed})" if listed else ""


def _not_come(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{one_line(name)}'" for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    has = "has" if len(names) == 1 else "have"
    return (
        f"{counted(len(names), 'picture')} that --points or --boxes name {has} not come: {listed}{more}. "
        f"Names are those that {RESULTS_FILE} has as file_name."
    )


def _say(console: Console, text: str) -> None:
    console.print(escape(printable(text)), highlight=False, soft_wrap=True)
