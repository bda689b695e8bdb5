"""What every verb shares: exit codes, streams that fail, and signals."""

import errno
import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vtk.cli.main import main
from vtk.cli.terminal import console
from vtk.errors import VerifyError

Verb = Callable[[object], int]
NO_MEMORY = (
    "error: There is not enough memory.\nFree some, or ask for less: a smaller model, cache, batch or picture.\n"
)


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
        (MemoryError(), 2, NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 2, NO_MEMORY),
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


# In a process of its own: delivering a signal to one in which OpenVINO has used AMX overflows faulthandler's stack.
SIGNALED = """
import os, pathlib, signal, sys, time
import vtk.cli.inspect as verb
from vtk.cli.main import main

number, ignored, scratch = int(sys.argv[1]), sys.argv[2] == "True", pathlib.Path(sys.argv[3])
signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)

def run(args):
    scratch.mkdir()
    try:
        os.kill(os.getpid(), number)
        time.sleep(0.0 if ignored else 60.0)
    finally:
        scratch.rmdir()
    return 0

verb.run = run
raise SystemExit(main(["inspect", "x"]))
"""


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_command_and_its_scratch_unless_ignored(
    number: signal.Signals, ignored: bool, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", SIGNALED, str(int(number)), str(ignored), str(tmp_path / "scratch")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0 if ignored else 128 + number, "")
    assert list(tmp_path.iterdir()) == []


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


def test_ctrl_c_while_the_verbs_are_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vtk.cli.main.import_module", interrupted)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr() == ("", "")


def test_little_is_imported_before_ctrl_c_is_taken_care_of() -> None:
    script = "import sys, vtk.cli.main; print(sorted({'rich', 'numpy', 'torch', 'tokenizers'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_names_are_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("pictures/:x:.jpg")
    assert capsys.readouterr().out == "pictures/:x:.jpg\n"
