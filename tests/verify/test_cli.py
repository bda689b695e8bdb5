"""`vtk verify` on the screen."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vtk.cli.main import main
from vtk.verification import VERIFY_NAME

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, stdout and stderr of `vtk verify`."""

    def command(*args: object) -> tuple[int, str, str]:
        code = main(["verify", *map(str, args)])
        out, err = capsys.readouterr()
        return code, out, err

    return command


def test_a_table_and_exit_code_0(make_bundle: Callable[..., Path], run_with: Callable[..., None], run: Run) -> None:
    root = make_bundle()
    run_with()
    code, out, err = run(root)
    assert (code, err) == (0, "")
    assert "batch 8: logits max abs, matched" in out
    assert "checks passed (fake on cpu, batch 1, 2, 8, 4 pictures)" in out


def test_the_first_stage_that_differs_and_exit_code_1(
    make_bundle: Callable[..., Path], run_with: Callable[..., None], run: Run
) -> None:
    """Case V02: a verify that runs batch 1 only would pass."""
    root = make_bundle()
    run_with(fault=lambda batch, outputs: {name: array + (batch == 2) for name, array in outputs.items()})
    code, out, err = run(root, "--batches", "1,2")
    assert code == 1
    assert "first stage that differs: engine: batch 2: " in err
    assert "FAIL" in out
    assert run(root, "--batches", "1,8")[0] == 0


def test_json_is_the_report(make_bundle: Callable[..., Path], run_with: Callable[..., None], run: Run) -> None:
    root = make_bundle()
    run_with()
    code, out, _ = run(root, "--json")
    assert code == 0
    assert json.loads(out) == json.loads((root / VERIFY_NAME).read_text(encoding="utf-8"))


def test_a_bundle_that_cannot_be_written_is_verified_all_the_same(
    make_bundle: Callable[..., Path], run_with: Callable[..., None], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    root = make_bundle()
    run_with()
    monkeypatch.setattr("vtk.verification.write_json_atomic", refuse)
    code, out, err = run(root)
    assert code == 0
    assert "checks passed" in out
    assert "not saved" in err
    assert "Read-only file system" in err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--batches", "0"], "--batches takes"),
        (["--batches", "1;2"], "got '1;2'"),
        (["--batches", "3"], "holds 1, 2, 8"),
        (["--checkpoint", "tiny.pth"], "--images"),
        (["--images", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2(
    options: list[str], told: str, make_bundle: Callable[..., Path], run_with: Callable[..., None], run: Run
) -> None:
    root = make_bundle()
    run_with()
    code, out, err = run(root, *options)
    assert (code, out) == (2, "")
    assert told in err


def test_a_folder_that_is_no_bundle_is_exit_code_2(tmp_path: Path, run: Run) -> None:
    code, _, err = run(tmp_path)
    assert code == 2
    assert "not a bundle" in err
