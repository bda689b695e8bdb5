"""Golden folders, and one loaded model per golden file for the whole run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import LoadedModel, load_model


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[3] / "data" / "golden"


@pytest.fixture(scope="session")
def full_golden() -> Path:
    """The complete golden folder; what is too large for the repository is checked only where it is at hand."""
    folder = os.environ.get("VTK_GOLDEN")
    if not folder:
        pytest.skip("VTK_GOLDEN does not name the folder of the complete golden checkpoints")
    return Path(folder)


@pytest.fixture(scope="session")
def load() -> Callable[..., LoadedModel]:
    """load(path, weights=..., family=...): a checkpoint file through the whole loader."""
    cache: dict[tuple[Path, str | None, str | None], LoadedModel] = {}

    def load_once(path: Path, *, weights: str | None = None, family: str | None = None) -> LoadedModel:
        key = (path, weights, family)
        if key not in cache:
            cache[key] = load_model(read_checkpoint(path, weights=weights), FamilyOptions(family=family))
        return cache[key]

    return load_once
