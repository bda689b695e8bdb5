import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def golden() -> Path:
    return Path(__file__).parents[1] / "data" / "golden"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A fresh seed per run; the failing one is shown among the captured output."""
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed} in {request.node.name}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """Pillow's encoder: encode(image, "PNG", **options) -> bytes."""

    def save(image: Image.Image, name: str, **options: object) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, name, **options)
        return buffer.getvalue()

    return save


@pytest.fixture(scope="session")
def photo() -> Image.Image:
    """A smooth, asymmetric RGB picture of 60 x 40 pixels that every codec keeps within a few levels."""
    rows, columns = np.mgrid[0:40, 0:60]
    return Image.fromarray(np.stack([columns * 4, rows * 6, 120 + 60 * np.sin(columns / 9)], axis=2).astype(np.uint8))
