"""The packaged SmolLM2, found without importing its package, and what transformers makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from vtk.llm_serving.loading.source import ModelSource, load_model_source

DATA = Path(__file__).parents[1] / "data" / "llm"


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> ModelSource:
    return load_model_source(smollm2_path)


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """smollm2.json; data/llm/make_smollm2_reference.py wrote it."""
    result: dict[str, Any] = json.loads((DATA / "smollm2.json").read_text())
    return result
