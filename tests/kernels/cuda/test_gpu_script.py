"""The GPU script and its tests, walked through without a GPU: every figure has its row, every failure is told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu"
MODULES = ("devices", "bench", "problems", "ceilings", "kernels", "peers", "llm", "vision", "report")
OPERATIONS = sorted(path.parent.name for path in (ROOT / "kernels").glob("*/cuda.py"))
ONE_OF_EACH = (
    "(dtype0 or nms or topk or verify or copy or windows or company or llama or graphs)"
    " and not (128 or 576 or 4096 or 5000 or 14336 or float16)"
)


@pytest.fixture(scope="module")
def script() -> Iterator[SimpleNamespace]:
    """The modules of the script, which find each other as those of a script do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT)
        yield SimpleNamespace(**{name: import_module(name) for name in MODULES})
    for name in MODULES:
        del sys.modules[name]


def dry_rows(script: SimpleNamespace, interpreting: Callable[[], Any], part: str) -> list[Any]:
    bench = script.bench.make_bench(dry=True, ceilings=script.bench.Ceilings(1.0, 1.0))
    with interpreting():
        return list(getattr(script, part).measure(bench))


@pytest.mark.parametrize("part", ["ceilings", "kernels", "peers", "llm", "vision"])
def test_every_part_runs_dry(script: SimpleNamespace, interpreting: Callable[[], Any], part: str) -> None:
    rows = dry_rows(script, interpreting, part)
    assert [row for row in rows if row.error] == []
    assert all(row.value is not None or row.note for row in rows)
    assert len({row.what for row in rows}) > 1


def test_no_kernel_is_forgotten(script: SimpleNamespace) -> None:
    bench = script.bench.make_bench(dry=True, ceilings=script.bench.Ceilings(1.0, 1.0))
    assert {name for name, _ in script.problems.all_problems(bench)} == set(OPERATIONS)
    tests = "\n".join(path.read_text() for path in (ROOT / "tests" / "gpu").glob("test_*.py"))
    assert [name for name in OPERATIONS if f"vtk.kernels.{name}" not in tests] == []


def test_the_tests_for_a_gpu_pass_in_the_interpreter() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "tests/gpu", "-k", ONE_OF_EACH]
    environment = {**os.environ, "VTK_GPU_TESTS": "interpreted"}
    run = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_a_floor_is_the_slower_of_memory_and_products(script: SimpleNamespace) -> None:
    ceilings = script.bench.Ceilings(gb_per_second=2000, tflops=500)
    assert ceilings.floor(4e9, 0) == pytest.approx(2e-3)
    assert ceilings.floor(4e9, 5e12) == pytest.approx(1e-2)


def test_without_a_gpu_only_a_dry_run_starts(script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="no CUDA device"):
        script.bench.make_bench(dry=False, ceilings=script.bench.Ceilings(1.0, 1.0))


def test_a_failing_figure_does_not_stop_the_others(script: SimpleNamespace) -> None:
    (row,) = script.bench.attempt("broken", lambda: 1 / 0)
    assert (row.what, row.value, row.error) == ("broken", None, "ZeroDivisionError: division by zero")


ROW = '{"what": "a", "value": 1.5, "unit": "us", "share": 0.25, "note": "n", "error": ""}'


def run_code(script: SimpleNamespace, code: str, name: str = "kernels") -> Any:
    return script.report.run_part(name, [sys.executable, "-c", code], 60)


def test_a_part_that_fails_keeps_its_rows(script: SimpleNamespace) -> None:
    part = run_code(script, f"print('chatter'); print('''{ROW}'''); raise ValueError('boom')")
    assert part.error == "exit code 1: ValueError: boom"
    assert part.rows == (script.bench.Row("a", 1.5, "us", 0.25, "n", ""),)
    assert "chatter" in part.output


def test_a_part_that_hangs_is_stopped_with_its_children(script: SimpleNamespace) -> None:
    """The child would hold the pipe open for as long as it lives."""
    part = script.report.run_part("kernels", ["sh", "-c", f"echo '{ROW}'; sleep 600 & wait"], 1)
    assert part.error == "stopped after 1 s"
    assert len(part.rows) == 1


@pytest.mark.parametrize(
    ("out", "code", "correct"),
    [
        ("61 passed, 2 skipped in 70.12s", 0, True),
        ("FAILED tests/gpu/test_a.py::test_b - boom\n1 failed, 60 passed in 3s", 1, False),
        ("126 skipped in 3s", 0, False),
        ("no tests ran", 5, False),
    ],
)
def test_only_tests_that_ran_and_passed_are_correct(
    script: SimpleNamespace, out: str, code: int, correct: bool
) -> None:
    part = run_code(script, f"print('''{out}'''); raise SystemExit({code})", name="tests")
    report = script.report.Report({"card": "x"}, (part,), dry=False)
    assert report.is_correct is correct
    assert ("tests/gpu/test_a.py::test_b" in script.report.table(report)) is out.startswith("FAILED")


@pytest.mark.parametrize(("value", "dry", "measured"), [(1.5, False, True), (None, False, False), (1.5, True, False)])
def test_only_figures_of_a_card_are_kept(script: SimpleNamespace, value: float, dry: bool, measured: bool) -> None:
    part = script.report.Part("kernels", 1.0, (script.bench.Row("a", value),))
    assert script.report.Report({"card": "x"}, (part,), dry).is_measured is measured


def test_without_ceilings_there_are_no_shares(script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-c", f"print('''{ROW}''')"]
    monkeypatch.setattr(script.report, "command", lambda name, *, dry, ceilings: words)
    (part,) = script.report.run_all(["kernels"], dry=True)
    assert [(row.value, row.share) for row in part.rows] == [(1.5, None)]


def test_limits_leave_the_whole_script_under_ten_minutes(script: SimpleNamespace) -> None:
    assert sum(script.report.LIMITS.values()) < 600


def test_the_script_writes_what_it_found(script: SimpleNamespace, tmp_path: Path) -> None:
    words = [SCRIPT / "run.sh", "--dry-run", "--parts", "ceilings", "--json", tmp_path / "out.json"]
    run = subprocess.run(words, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("DRY RUN")
    written = json.loads((tmp_path / "out.json").read_text())
    assert {"card", "driver", "torch", "triton"} <= written["machine"].keys()
    assert [row["what"] for row in written["parts"][0]["rows"]] == [script.ceilings.BANDWIDTH, script.ceilings.PRODUCTS]


def test_an_unknown_part_is_refused(script: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.report.main(["--parts", "kernel"])
    assert "no part is called kernel; there are tests, ceilings" in capsys.readouterr().err


def test_the_readme_says_whether_a_card_has_run_it() -> None:
    measured = any((SCRIPT / "results").glob("*.json"))
    assert ("Not run on a GPU yet" in (SCRIPT / "README.md").read_text()) is not measured
