"""The islands that families ask for exist: an unknown name would only be told at an export in half precision."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vtk.exporters.families
from vtk.exporters.precision_islands import FINDERS

FOLDER = Path(vtk.exporters.families.__path__[0])
SOURCES = [*FOLDER.glob("*.py"), *(FOLDER.parent / "modules").glob("*.py")]


def asked_for(path: Path) -> list[str]:
    """String constants in `fp32_islands=...` and `FP32_ISLANDS = ...` of one file."""
    values: list[ast.expr] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "fp32_islands":
            values.append(node.value)
        if isinstance(node, ast.Assign) and any(
            isinstance(to, ast.Name) and to.id == "FP32_ISLANDS" for to in node.targets
        ):
            values.append(node.value)
    inner = (item for value in values for item in ast.walk(value))
    return [item.value for item in inner if isinstance(item, ast.Constant) and isinstance(item.value, str)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_islands_of_families_are_known(path: Path) -> None:
    assert set(asked_for(path)) <= FINDERS.keys()


def test_the_families_with_attention_ask_for_its_islands() -> None:
    """Case V09: scores, softmax and norms of DINOv3 and of the detectors on it."""
    for stem in ("dino_keys", "detector_spec"):
        asked = {name for path in SOURCES if path.stem == stem for name in asked_for(path)}
        assert {"layer_norm", "attention_scores", "softmax"} <= asked
