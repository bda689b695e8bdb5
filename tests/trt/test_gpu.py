"""Real engines on a real GPU: built by the library that is installed, and equal to their graph in ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tiny_bundles import make_bundle, save_graph

from vtk.engine_adding import with_engines
from vtk.engine_builds import build_engines
from vtk.engine_choice import EngineRequest
from vtk.engines.cuda_driver import gpu_target
from vtk.engines.tensorrt import open_tensorrt
from vtk.exporters.to_tensorrt import build_engine
from vtk.exporters.to_tensorrt_api import KINDS, RTX_TARGETS, Kind, is_installed, load

GPU = gpu_target()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPU is None, reason="needs a CUDA device")]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    if not is_installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    if request.param == "tensorrt_rtx" and GPU not in RTX_TARGETS:
        pytest.skip(f"TensorRT-RTX does not build for {GPU}")
    found: Kind = request.param
    return found


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("batch", [1, 4])
def test_an_engine_computes_what_its_graph_does(kind: Kind, batch: int, half: bool, tmp_path: Path) -> None:
    assert GPU is not None
    graph = save_graph(tmp_path / "model.onnx", batch=batch, half=half, size_hw=(32, 48))
    plan = tmp_path / "plan"
    build_engine(load(kind), graph, plan, targets=[GPU], precision="fp16" if half else "fp32")
    images = np.random.default_rng(batch).random((batch, 3, 32, 48), np.float32)
    (expected,) = onnxruntime.InferenceSession(str(graph)).run(None, {"images": images})
    engine = open_tensorrt(plan, kind=kind)
    for _ in range(2):
        np.testing.assert_allclose(engine.infer({"images": images})["logits"], expected, atol=2e-3 if half else 1e-5)
    other = engine.share()
    engine.close()
    np.testing.assert_allclose(other.infer({"images": images})["logits"], expected, atol=2e-3 if half else 1e-5)
    other.close()


def test_engines_that_are_built_here_fit_here(kind: Kind, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "b")
    built = build_engines(bundle, EngineRequest(cache=None), lambda text: None)
    assert {item.target for item in with_engines(bundle.manifest, built).artifacts} == {"any", GPU}
