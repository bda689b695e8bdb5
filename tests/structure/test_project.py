"""What the project says of itself is true: README commands parse, warnings are errors, no machine is named."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vtk.cli.main import build_parser

ROOT = Path(__file__).parents[2]
SHELL_BLOCK = re.compile(r"```(?:bash|sh|console)\n(.*?)```", re.DOTALL)


def readme_commands() -> list[str]:
    lines: list[str] = []
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        for block in SHELL_BLOCK.findall((ROOT / name).read_text()):
            joined = block.replace("\\\n", " ")
            lines += [line.split("  #")[0].removeprefix("$ ").strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def test_the_readme_starts_with_the_two_commands() -> None:
    commands = readme_commands()
    assert commands[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("command", [c for c in readme_commands() if c.startswith("vtk ")])
def test_every_vtk_command_in_the_docs_parses(command: str) -> None:
    build_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.parametrize("command", [c for c in readme_commands() if c.startswith("make ")])
def test_every_make_target_in_the_docs_exists(command: str) -> None:
    target = shlex.split(command)[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_script_in_the_docs_exists() -> None:
    scripts = [word for c in readme_commands() for word in shlex.split(c) if word.endswith(".py")]
    assert all((ROOT / script).is_file() for script in scripts), scripts


def test_links_in_the_docs_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (ROOT / name).read_text()):
            assert (ROOT / link).exists(), f"{name}: {link}"


def test_warnings_are_errors(tmp_path: Path) -> None:
    probe = tmp_path / "test_probe.py"
    probe.write_text("import warnings\ndef test_warns():\n    warnings.warn('deprecated thing', DeprecationWarning)\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run([*command, f"--rootdir={tmp_path}", str(probe)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "deprecated thing" in done.stdout


def tracked_text_files() -> list[Path]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    text = {".py", ".md", ".toml", ".cpp", ".yaml", ".yml", ".json", ""}
    return [ROOT / name for name in names.splitlines() if Path(name).suffix in text]


def test_nothing_machine_bound_is_committed() -> None:
    """No absolute path of a machine, no address of a package index."""
    pattern = re.compile(r"(?<![\w.])/(?:root|work|home|opt|Users)/|\bpypi\.org|pythonhosted|--(?:extra-)?index-url")
    me = Path(__file__)
    bad = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked_text_files()
        if path != me and path.is_file() and (match := pattern.search(path.read_text(errors="ignore")))
    ]
    assert not bad


def test_pictures_are_never_opened_by_path_in_opencv() -> None:
    """Case V45: cv2.imread returns None for names it cannot encode; bytes in, bytes out."""
    banned = re.compile(r"cv2\.im(read|write)\(")
    for path in tracked_text_files():
        if path.suffix == ".py" and path != Path(__file__) and path.is_file():
            assert not banned.search(path.read_text()), path
