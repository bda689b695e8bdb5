"""TensorRT without TensorRT: fake libraries with the recorded names of real releases, and a fake GPU."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vtk.exporters import to_tensorrt_api
from vtk.exporters.to_tensorrt_api import TensorRT

DATA = Path(__file__).parents[1] / "data" / "tensorrt"


def _load(name: str) -> ModuleType:
    """A module of the data folder, which tests then import by its name."""
    spec = importlib.util.spec_from_file_location(name, DATA / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


fake, tiny = _load("fake_tensorrt"), _load("tiny_bundles")


@pytest.fixture(autouse=True)
def no_shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees engines that another one, or a user, has built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["10", "11", "rtx"])
def api(request: pytest.FixtureRequest) -> TensorRT:
    """Each of the three libraries."""
    return tiny.make_api(request.param)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Makes fake libraries of these releases the only ones that are installed, on a machine with `gpu` or without."""

    def install(*releases: str, gpu: str | None = None) -> dict[str, Any]:
        apis = {api.kind: api for api in map(tiny.make_api, releases)}
        versions = {kind: api.version for kind, api in apis.items()}
        for where in ("vtk.engine_choice", "vtk.engines.hosts"):
            monkeypatch.setattr(f"{where}.installed_version", versions.get)
            monkeypatch.setattr(f"{where}.gpu_target", lambda: gpu)
        monkeypatch.setattr(to_tensorrt_api, "is_installed", versions.__contains__)
        monkeypatch.setattr(to_tensorrt_api, "import_module", lambda kind: apis[kind].module)
        return {kind: api.module for kind, api in apis.items()}

    return install


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A GPU of target sm_89."""
    library = fake.FakeCuda("sm_89")
    monkeypatch.setattr("vtk.engines.cuda_driver._load", lambda: library)
    return library


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """The tiny graph in float32."""
    return tiny.save_graph(tmp_path / "model.b1.onnx")
