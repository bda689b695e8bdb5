"""What every verb shares: exit codes, streams that fail, and signals."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vtk.cli.main import main
from vtk.cli.terminal import console
from vtk.errors import VerifyError

Verb = Callable[[object], int]


@pytest.fixture
def inspect_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verb], None]:
    """Puts a function in the place of `vtk inspect`."""
    return lambda verb: monkeypatch.setattr("vtk.cli.inspect.run", verb)


def raising(error: BaseException) -> Verb:
    def verb(args: object) -> int:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (VerifyError("rows differ.", hint="Export again."), 1, "error: rows differ.\nExport again.\n"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "private/x.pth"), 2, "error: private/x.pth: Permission denied.\n"),
    ],
)
def test_an_expected_failure_is_one_message_and_a_code(
    inspect_is: Callable[[Verb], None],
    error: BaseException,
    code: int,
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inspect_is(raising(error))
    assert main(["inspect", "x"]) == code
    assert capsys.readouterr() == ("", told)


def test_a_path_that_cannot_be_looked_at_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["inspect", "x" * 300], ["verify", "x" * 300], ["run", "x" * 300, "y", "-o", "z"]):
        assert main(command) == 2
        assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_its_scratch(
    inspect_is: Callable[[Verb], None], number: signal.Signals, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"

    def verb(args: object) -> int:
        scratch.mkdir()
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            scratch.rmdir()
        return 0

    inspect_is(verb)
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "x"])
    assert ended.value.code == 128 + number
    assert not scratch.exists()
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_signal_that_is_ignored_stays_ignored(inspect_is: Callable[[Verb], None]) -> None:
    def verb(args: object) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return 0

    inspect_is(verb)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["inspect", "x"]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_the_encoding_cannot_show_is_escaped(
    inspect_is: Callable[[Verb], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    inspect_is(lambda args: console().print("digits… ünï") or 0)
    assert main(["inspect", "x"]) == 0
    stream.seek(0)
    assert stream.read() == "digits\\u2026 \\xfcn\\xef\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_one_message() -> None:
    script = (
        "import vtk.cli.inspect as verb\n"
        "from vtk.cli.main import main\n"
        "verb.run = lambda args: print('text', flush=True) or 0\n"
        "raise SystemExit(main(['inspect', 'x']))\n"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (1, "error: The output cannot be written: No space left on device.\n")


def test_names_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("pictures/:x:.jpg")
    assert capsys.readouterr().out == "pictures/:x:.jpg\n"
