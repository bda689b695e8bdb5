"""The layout of the project, held over its syntax trees: who may import whom, and under which name."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIBLINGS = ("exporters", "preprocess", "postprocess", "kernels", "llm_serving")
# Package -> what it may import of vtk, besides itself. `vtk` itself may import everything.
ALLOWED = {
    "kernels": {"vtk.errors"},
    "preprocess": {"vtk.errors", "vtk.kernels"},
    "postprocess": {"vtk.errors", "vtk.kernels", "vtk.preprocess"},
    "exporters": {"vtk.errors", "vtk.kernels", "vtk.preprocess", "vtk.postprocess"},
    "llm_serving": {"vtk.errors", "vtk.kernels", "vtk.exporters.checkpoint"},
}


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def is_allowed(name: str, package: str) -> bool:
    inside = f"vtk.{package}"
    if name == inside or name.startswith((f"{inside}.", f"{inside}_")):
        return True
    return any(name == entry or name.startswith((f"{entry}.", f"{entry}_")) for entry in ALLOWED[package])


@pytest.mark.parametrize("package", SIBLINGS)
def test_imports_point_one_way(package: str) -> None:
    bad = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imported_names(path)
        if (name == "vtk" or name.startswith("vtk.")) and not is_allowed(name, package)
    ]
    assert not bad, f"{package} may import {sorted(ALLOWED[package])} only"


def test_the_checkpoint_reader_stands_alone() -> None:
    """Both paths use it, so it may know nothing of either."""
    for path in (ROOT / "exporters").glob("checkpoint*.py"):
        for name in imported_names(path):
            if name.startswith("vtk"):
                assert name == "vtk.errors" or name.startswith("vtk.exporters.checkpoint"), f"{path.name}: {name}"


def test_verbs_are_known_to_nothing() -> None:
    for path in (ROOT / "vtk").rglob("*.py"):
        if "cli" not in path.parts and path.name != "__main__.py":
            assert not any(name.startswith("vtk.cli") for name in imported_names(path)), path


@pytest.mark.parametrize("package", SIBLINGS)
def test_a_second_copy_cannot_be_imported(package: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import {package}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"import vtk.{package}, not {package}" in done.stderr


def test_no_file_shadows_a_library_it_imports() -> None:
    for package in ("vtk", *SIBLINGS):
        for path in (ROOT / package).rglob("*.py"):
            assert path.stem not in {name.partition(".")[0] for name in imported_names(path)}, path


def test_every_package_folder_is_installed() -> None:
    """The explicit package list in pyproject.toml holds every folder that has an __init__.py."""
    table = (ROOT / "pyproject.toml").read_text().partition("\npackages = [")[2].partition("]")[0]
    listed = set(re.findall(r'"([\w.]+)"', table))
    found = set()
    for top in ("vtk", *SIBLINGS):
        for init in (ROOT / top).rglob("__init__.py"):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            found.add(name if top == "vtk" else f"vtk.{name}")
    assert listed == found


def test_import_vtk_is_cheap() -> None:
    code = "import sys, vtk; bad = {'torch', 'numpy', 'onnx', 'PIL'} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=ROOT.parent)


def test_public_names_exist_and_are_documented() -> None:
    import vtk

    for name in vtk.__all__:
        assert getattr(vtk, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        vtk.nonsense  # noqa: B018
