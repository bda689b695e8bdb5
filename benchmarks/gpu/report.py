"""Runs every part of the GPU script, each in a process with a time limit, prints one table and writes one JSON file.

    benchmarks/gpu/run.sh [--dry-run] [--parts tests,ceilings,...] [--json FILE]

Exits with 1 if the tests failed or did not end. A part that fails is reported, and the others run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench import Ceilings, Row
from ceilings import BANDWIDTH, PRODUCTS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = "tests"
LIMITS = {TESTS: 240, "ceilings": 30, "kernels": 90, "peers": 80, "llm": 100, "vision": 40}  # seconds, below 600
LIBRARIES = ("torch", "triton", "torchvision", "flash-attn", "flashinfer-python")
MAX_MESSAGE, MAX_OUTPUT = 300, 20_000


@dataclass(frozen=True)
class Part:
    """How one part ended. error: why it did not end well; output: the end of what it printed then."""

    name: str
    seconds: float
    rows: tuple[Row, ...] = ()
    error: str = ""
    output: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that one run found."""

    machine: Mapping[str, str]
    parts: tuple[Part, ...]
    dry: bool
    at: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def is_measured(self) -> bool:
        """Whether a card gave any figure."""
        return not self.dry and any(row.value for part in self.parts for row in part.rows)

    @property
    def is_correct(self) -> bool:
        """Whether the tests ran, and passed."""
        tests = [part for part in self.parts if part.name == TESTS]
        return bool(tests) and not any(part.error for part in tests)


def command(name: str, *, dry: bool, ceilings: Ceilings | None) -> list[str]:
    if name == TESTS:
        return [sys.executable, "-m", "pytest", "-q", "-x" if dry else "--maxfail=20", "--durations=0", "tests/gpu"]
    words = [sys.executable, str(HERE / f"{name}.py"), *(["--dry-run"] if dry else [])]
    if ceilings is not None:
        words += ["--gb-per-second", str(ceilings.gb_per_second), "--tflops", str(ceilings.tflops)]
    return words


def environment(name: str, *, dry: bool) -> dict[str, str]:
    """Kernels of a dry run are interpreted; the tests bring an interpreter of their own."""
    extra = ({"VTK_GPU_TESTS": "interpreted"} if name == TESTS else {"TRITON_INTERPRET": "1"}) if dry else {}
    return {**os.environ, **extra}


def run_part(name: str, words: Sequence[str], limit: float, env: Mapping[str, str] | None = None) -> Part:
    """Runs one part to its end or its limit, with the rows that it printed by then."""
    start = time.monotonic()
    error = ""
    with subprocess.Popen(
        words, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that compile for it
            out, err = process.communicate()
            error = f"stopped after {limit:g} s"
    if process.returncode and not error:
        error = f"exit code {process.returncode}: {last_line(err) or last_line(out)}"[:MAX_MESSAGE]
    seconds = time.monotonic() - start
    rows = (test_summary(out),) if name == TESTS else tuple(rows_in(out))
    if name == TESTS and not error and rows[0].value == 0:
        error = f"no test ran: {rows[0].note}"
    return Part(name, seconds, rows, error, (out + err)[-MAX_OUTPUT:] if error else "")


def rows_in(out: str) -> list[Row]:
    """The rows among what a part printed; libraries print lines of their own."""
    return [Row(**json.loads(line)) for line in out.splitlines() if line.startswith('{"what":')]


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def test_summary(out: str) -> Row:
    """Pytest's last line, such as `61 passed, 2 skipped in 70.12s`, and every failure by name."""
    summary = last_line(out).strip("= ")
    words = summary.replace(",", "").split()
    passed = int(words[words.index("passed") - 1]) if "passed" in words else 0
    failed = [line.removeprefix("FAILED ") for line in out.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return Row("tests passed", passed, "", note=summary, error="; ".join(failed))


def ceilings_of(part: Part) -> Ceilings | None:
    found = {row.what: row.value for row in part.rows}
    bandwidth, products = found.get(BANDWIDTH), found.get(PRODUCTS)
    return Ceilings(bandwidth, products) if bandwidth and products else None


def run_all(names: Sequence[str], *, dry: bool) -> tuple[Part, ...]:
    parts: list[Part] = []
    ceilings: Ceilings | None = None
    for name in names:
        words, env = command(name, dry=dry, ceilings=ceilings), environment(name, dry=dry)
        part = run_part(name, words, LIMITS[name], env)
        if name == "ceilings":
            ceilings = ceilings_of(part)
        elif ceilings is None:  # then shares are of nothing
            part = replace(part, rows=tuple(replace(row, share=None) for row in part.rows))
        parts.append(part)
        print(f"{part.output}{name}: {part.error or 'done'} in {part.seconds:.0f} s", file=sys.stderr, flush=True)
    return tuple(parts)


def machine() -> dict[str, str]:
    """The card, its driver, and the libraries."""
    return {**card(), "python": sys.version.split()[0], **{library: installed(library) for library in LIBRARIES}}


def installed(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def card() -> dict[str, str]:
    """By nvidia-smi, so that this process takes no memory of the card."""
    words = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
    try:
        out = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return {"card": "unknown", "driver": f"no nvidia-smi ({type(error).__name__})"}
    name, driver, memory, clock = (cell.strip() for cell in out.splitlines()[0].split(","))
    return {"card": name, "driver": driver, "memory": memory, "clock": clock}


def table(report: Report) -> str:
    """Everything as one Markdown table."""
    lines = [" · ".join(f"{name} {value}" for name, value in report.machine.items()), ""]
    if report.dry:
        lines = ["DRY RUN: no figure below was measured", *lines]
    lines += ["| part | what | value | of the ceiling | |", "|---|---|---:|---:|---|"]
    for part in report.parts:
        lines += [line(part.name, row) for row in part.rows]
        if part.error:
            lines.append(f"| {part.name} | **{part.error.replace('|', '/')}** | | | after {part.seconds:.0f} s |")
    return "\n".join(lines)


def line(part: str, row: Row) -> str:
    value = "" if row.value is None else f"{row.value:,.4g} {row.unit}".strip()
    share = "" if row.share is None else f"{row.share:.0%}"
    note = f"**{row.error}**" if row.error else row.note
    return f"| {part} | {row.what} | {value} | {share} | {note.replace('|', '/')} |"


def default_path(report: Report) -> Path:
    return HERE / "results" / f"{'_'.join(report.machine['card'].lower().split())}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="on the CPU: tiny sizes, interpreted kernels, no times")
    parser.add_argument("--parts", default=",".join(LIMITS), help="some of %(default)s")
    parser.add_argument("--json", type=Path, help="default: results/<card>.json, if anything was measured")
    args = parser.parse_args(arguments)
    names = args.parts.split(",")
    if unknown := sorted(set(names) - LIMITS.keys()):
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(LIMITS)}")
    report = Report(machine(), run_all(names, dry=args.dry_run), args.dry_run)
    print(table(report))
    path = args.json or (default_path(report) if report.is_measured else None)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(report), indent=2) + "\n")
        print(f"written to {path}", file=sys.stderr)
    return 0 if report.is_correct or TESTS not in names else 1


if __name__ == "__main__":
    sys.exit(main())
