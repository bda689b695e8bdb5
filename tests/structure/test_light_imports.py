"""What needs no language model needs none of its packages: bundles are served where torch is not installed."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WITHOUT = "import sys; sys.modules.update(dict.fromkeys(['torch', 'tokenizers', 'jinja2', 'xgrammar', 'transformers']))"


@pytest.mark.parametrize(
    "module", ["vtk.server.launch", "vtk.runtime", "vtk.cli.serve", "vtk.predictor", "vtk.engine_adding"]
)
def test_it_is_imported_without_torch(module: str) -> None:
    code = f"{WITHOUT}; import {module}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def installed_by(name: str, extra: str = "") -> set[str]:
    """All distributions that `pip install name[extra]` brings, read from the metadata of what is installed here."""
    found: set[str] = set()
    wanted = [(name, extra)]
    while wanted:
        distribution, asked = wanted.pop()
        if f"{distribution}[{asked}]" in found:
            continue
        found |= {distribution, f"{distribution}[{asked}]"}
        try:
            lines = metadata.requires(distribution) or []
        except metadata.PackageNotFoundError:
            continue
        for needed in map(Requirement, lines):
            if needed.marker is None or needed.marker.evaluate({"extra": asked}):
                wanted += [(canonicalize_name(needed.name), part) for part in ("", *needed.extras)]
    return found


@pytest.mark.parametrize("extra", ["", "cpu", "llm", "serve", "openvino", "parquet", "video", "otel"])
def test_torch_is_not_installed_for(extra: str) -> None:
    brought = installed_by("vtk-deploy", extra)
    assert "numpy" in brought
    assert "torch" not in brought


@pytest.mark.parametrize("extra", ["export", "torch", "structured", "gpu"])
def test_torch_is_installed_for(extra: str) -> None:
    assert "torch" in installed_by("vtk-deploy", extra)
