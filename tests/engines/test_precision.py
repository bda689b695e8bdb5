"""What a runtime cannot compute is told with what can be done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from vtk.engines.open import open_engine
from vtk.errors import BackendError


@pytest.fixture
def bfloat16_graph(tmp_path: Path) -> Path:
    """images (1, 2) float32, rounded to bfloat16, doubled there."""
    nodes = [
        helper.make_node("Cast", ["images"], ["half"], to=TensorProto.BFLOAT16),
        helper.make_node("Add", ["half", "half"], ["twice"]),
        helper.make_node("Cast", ["twice"], ["out"], to=TensorProto.FLOAT),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in ("images", "out")]
    graph = helper.make_graph(nodes, "doubled", ends[:1], ends[1:])
    path = tmp_path / "graph.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_bfloat16_on_the_cpu_of_onnxruntime_is_refused_with_the_way_out(bfloat16_graph: Path) -> None:
    with pytest.raises(BackendError, match=r"bfloat16.*--backend openvino.*--precision fp16"):
        open_engine(bfloat16_graph, backend="ort", device="cpu")


def test_openvino_computes_bfloat16_graphs(bfloat16_graph: Path) -> None:
    pytest.importorskip("openvino")
    engine = open_engine(bfloat16_graph, backend="openvino", device="cpu")
    outputs = engine.infer({"images": np.array([[1, 3]], np.float32)})
    np.testing.assert_array_equal(outputs["out"], [[2, 6]])
    engine.close()
