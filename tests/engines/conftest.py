"""Tiny graphs for the engines."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SCALE = np.array([[1.0, 2.0, 3.0]], np.float32)


@pytest.fixture
def write_graph(tmp_path: Path) -> Callable[..., Path]:
    """`images` (batch, 3, 4, 6) to `cls` (batch, 3), the channel means times 1, 2, 3, and `top`, their order."""

    def write(batch: int | str = 2) -> Path:
        inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, 4, 6])]
        outputs = [
            helper.make_tensor_value_info("cls", TensorProto.FLOAT, [batch, 3]),
            helper.make_tensor_value_info("top", TensorProto.INT64, [batch, 1]),
        ]
        nodes = [
            helper.make_node("ReduceMean", ["images", "axes"], ["means"], keepdims=0),
            helper.make_node("Mul", ["means", "scale"], ["cls"]),
            helper.make_node("ArgMax", ["cls"], ["top"], axis=1, keepdims=1),
        ]
        constants = [
            numpy_helper.from_array(SCALE, "scale"),
            numpy_helper.from_array(np.array([2, 3], np.int64), "axes"),
        ]
        graph = helper.make_graph(nodes, "tiny", inputs, outputs, constants)
        path = tmp_path / f"tiny.b{batch}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
        return path

    return write
