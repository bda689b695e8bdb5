"""Real TensorRT-RTX engines, built ahead of time without a GPU; skipped where the package is not installed."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_bundles import make_bundle, save_graph

from vtk.bundle import read_bundle, write_manifest
from vtk.cli.main import main
from vtk.errors import ExportError
from vtk.exporters.to_tensorrt import build_engine
from vtk.exporters.to_tensorrt_api import RTX_TARGETS, TensorRT, load

rtx = pytest.importorskip("tensorrt_rtx")
FAKE_SURFACE = Path(__file__).parents[1] / "data" / "tensorrt" / "rtx-1.7.1.116.json"


@pytest.fixture(scope="module")
def real() -> TensorRT:
    return load("tensorrt_rtx")


def test_the_recorded_names_are_those_of_the_library(real: TensorRT) -> None:
    surface = json.loads(FAKE_SURFACE.read_text())
    if real.version != surface["version"]:
        pytest.skip(f"recorded from {surface['version']}, installed is {real.version}")
    for name, members in surface["classes"].items():
        assert set(members) <= set(dir(getattr(real.module, name))), name
    assert set(surface["enums"]["BuilderFlag"]) == set(real.module.BuilderFlag.__members__)


def test_every_target_of_the_table_is_one_of_the_library(real: TensorRT) -> None:
    members = set(real.module.ComputeCapability.__members__) - {"NONE", "CURRENT"}
    assert {target.replace("sm_", "SM") for target in RTX_TARGETS} == members


def test_a_plan_is_the_same_at_every_build(real: TensorRT, tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "model.onnx")
    for name in ("a", "b"):
        built = build_engine(real, graph, tmp_path / name, targets=["sm_86", "sm_89"], precision="fp32")
        assert built.num_layers > 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_network_of_a_half_graph_is_half(real: TensorRT, tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "model.onnx", half=True)
    assert build_engine(real, graph, tmp_path / "plan", targets=["sm_89"], precision="fp16").layers.half_share == 1
    with pytest.raises(ExportError, match="built as fp32, but 100%"):
        build_engine(real, graph, tmp_path / "wrong", targets=["sm_89"], precision="fp32")
    assert not (tmp_path / "wrong").exists()


def save_one_node(path: Path, op_type: str, *, domain: str = "") -> Path:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"], name="the_node", domain=domain)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 18)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_an_operator_that_is_not_known_is_named_with_its_node(real: TensorRT, tmp_path: Path) -> None:
    """Case V18."""
    graph = save_one_node(tmp_path / "odd.onnx", "Mystery", domain="com.example")
    with pytest.raises(ExportError, match=r"cannot read odd\.onnx: Mystery 'the_node'"):
        build_engine(real, graph, tmp_path / "plan", targets=["sm_89"], precision="fp32")


def test_what_a_gpu_cannot_do_is_the_reason_of_the_failure(real: TensorRT, tmp_path: Path) -> None:
    """Turing has no float32 matrix product there; the builder itself returns None and only logs why."""
    graph = save_one_node(tmp_path / "product.onnx", "MatMul")
    with pytest.raises(ExportError, match=r"cannot build product\.onnx for sm_75: .*the_node.*FP32 GEMM"):
        build_engine(real, graph, tmp_path / "plan", targets=["sm_75"], precision="fp32")


def test_vtk_build_adds_engines_to_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vtk.engine_choice.gpu_target", lambda: None)
    monkeypatch.setattr("vtk.engines.hosts.gpu_target", lambda: None)
    bundle = make_bundle(tmp_path / "b")
    write_manifest(bundle.root, bundle.manifest)
    assert main(["build", str(bundle.root), "--target", "sm_89,sm_120"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{bundle.root}\n"
    assert ".plan: fp32, " in err
    artifacts = read_bundle(bundle.root).manifest.artifacts
    assert [item.target for item in artifacts] == ["any", "sm_89", "sm_120"]
    assert main(["build", str(bundle.root), "--target", "sm_90"]) == 2
    assert "classic TensorRT" in capsys.readouterr().err
