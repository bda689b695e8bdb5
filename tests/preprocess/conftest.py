from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

RGBImage = npt.NDArray[np.uint8]


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A fresh seed per run; the failing one is shown among the captured output."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed} in {request.node.name}")
    return np.random.default_rng(seed)
