from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe

Place = Callable[[tuple[int, int], tuple[int, int]], Geometry]


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture
def stretched() -> Place:
    """(source_hw, input_hw) to the geometry of a picture that is stretched."""
    return lambda source_hw, input_hw: geometry_for(Recipe(size_hw=input_hw), source_hw)


@pytest.fixture
def letterboxed() -> Place:
    """(source_hw, input_hw) to the geometry of a picture that is letterboxed."""
    return lambda source_hw, input_hw: geometry_for(Recipe(size_hw=input_hw, resize="letterbox"), source_hw)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Fresh numbers each run; the seed is shown when a test fails."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed} in {request.node.name}")
    return np.random.default_rng(seed)
