"""Small graphs written by hand, and what a strongly typed runtime would compute with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from vtk.exporters.precision import PrecisionPlan
from vtk.exporters.precision_cast import cast_model
from vtk.exporters.precision_round import round_model

Floats = npt.NDArray[np.float32]
MakeGraph = Callable[..., ir.Model]


@pytest.fixture
def make_graph() -> MakeGraph:
    """Graph text (`(float[2,4] x) => (float[2,4] y) { ... }`) with constants by name, types inferred."""

    def make(text: str, constants: Mapping[str, Any] | None = None, *, opset: int = 18) -> ir.Model:
        proto = parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> graph {text}')
        for name, value in (constants or {}).items():
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return ir.from_proto(onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True))

    return make


def _check_types(model: ir.Model) -> onnx.ModelProto:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    return proto


@pytest.fixture
def check_types() -> Callable[[ir.Model], onnx.ModelProto]:
    """The proto of a graph, after ONNX itself has found every type in it to be allowed."""
    return _check_types


def _run(proto: onnx.ModelProto, feeds: Mapping[str, Floats]) -> dict[str, Floats]:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


@pytest.fixture
def run_proto() -> Callable[[onnx.ModelProto, Mapping[str, Floats]], dict[str, Floats]]:
    """Outputs by name in ONNX Runtime on the CPU."""
    return _run


@pytest.fixture
def run_rounded() -> Callable[[ir.Model, PrecisionPlan, Mapping[str, Floats]], dict[str, Floats]]:
    """Cast as planned, then what each half-precision operator gives when its result is rounded."""

    def run(model: ir.Model, plan: PrecisionPlan, feeds: Mapping[str, Floats]) -> dict[str, Floats]:
        cast_model(model, plan)
        _check_types(model)
        round_model(model)
        return _run(_check_types(model), feeds)

    return run


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    return Path(__file__).parents[2] / "data" / "golden"
