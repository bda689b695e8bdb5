"""What the cast pass does to a graph: types, borders and values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import UsageError
from vtk.exporters.precision import measure, plan_precision, to_half
from vtk.exporters.precision_cast import cast_model
from vtk.exporters.precision_round import round_model

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
MLP = """(float[2,4] x) => (float[2,3] y) {
    h = MatMul(x, w)
    b = Add(h, bias)
    r = Relu(b)
    y = MatMul(r, v)
}"""


def mlp_constants(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(4, 5)).astype(np.float32),
        "bias": rng.normal(size=5).astype(np.float32),
        "v": rng.normal(size=(5, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_inputs_and_outputs_stay_float32_and_weights_become_half(
    precision: Any, make_graph: Any, check_types: Any
) -> None:
    model = make_graph(MLP, mlp_constants(0))
    cast_model(model, plan_precision(model, precision))
    proto = check_types(model)
    assert [value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)] == [1, 1]
    assert {value.dtype for value in model.graph.initializers.values()} == {
        ir.DataType.FLOAT16 if precision == "fp16" else ir.DataType.BFLOAT16
    }
    assert [node.op_type for node in model.graph] == ["Cast", "MatMul", "Add", "Relu", "MatMul", "Cast"]
    assert (measure(model).parameters, measure(model).nodes) == (1, 1)


@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_rounding_follows_each_operator(precision: Any, dtype: Any, make_graph: Any, run_rounded: Any) -> None:
    """Against the same steps written out in NumPy: compute in float32, round each result."""
    rng = np.random.default_rng(1)
    constants, x = mlp_constants(1), rng.normal(size=(2, 4)).astype(np.float32)

    def rounded(array: Any) -> Any:
        return array.astype(dtype).astype(np.float32)

    w, bias, v = (rounded(constants[name]) for name in ("w", "bias", "v"))
    hidden = rounded(rounded(x) @ w)
    expected = rounded(np.maximum(rounded(hidden + bias), 0) @ v)
    model = make_graph(MLP, constants)
    came = run_rounded(model, plan_precision(model, precision), {"x": x})["y"]
    # one unit of the last place: the order of the sum is the runtime's
    np.testing.assert_allclose(came, expected, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-6)
    assert not np.array_equal(came, np.maximum(x @ constants["w"] + constants["bias"], 0) @ constants["v"])


def test_a_constant_that_two_precisions_read_is_stored_in_both(make_graph: Any, check_types: Any) -> None:
    text = """(float[2,4] x) => (float[2,4] y, float[2,4] z) {
        a = Mul(x, c)
        y = Softmax <axis=-1>(a)
        m = MatMul(x, w)
        r = Relu(m)
        z = Mul(r, c)
    }"""
    constants = {"c": np.arange(4, dtype=np.float32), "w": np.eye(4, dtype=np.float32)}
    model = make_graph(text, constants)
    plan = plan_precision(model, "fp16")
    assert plan.kept == {"y": "softmax", "z": "outputs"}
    cast_model(model, plan)
    check_types(model)
    stored = [value.dtype for value in model.graph.initializers.values() if value.shape == (4,)]
    assert sorted(kind.name for kind in stored) == ["FLOAT", "FLOAT16"]


def test_scales_of_resize_stay_float32(make_graph: Any, check_types: Any) -> None:
    text = """(float[1,2,4,4] x) => (float[1,2,8,8] y) {
        h = Conv(x, w)
        y = Resize <mode="nearest"> (h, , scales)
    }"""
    constants = {"w": np.ones((2, 2, 1, 1), np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}
    model = make_graph(text, constants)
    cast_model(model, plan_precision(model, "fp16"))
    check_types(model)
    (resize,) = (node for node in model.graph if node.op_type == "Resize")
    assert [None if value is None else value.dtype for value in resize.inputs] == [
        ir.DataType.FLOAT16,
        None,
        ir.DataType.FLOAT,
    ]


def test_an_output_of_the_graph_that_others_read_keeps_its_name(
    make_graph: Any, check_types: Any, run_proto: Any
) -> None:
    text = "(float[2,2] x) => (float[2,2] y, float[2,2] z) { y = MatMul(x, w)  z = Relu(y) }"
    model = make_graph(text, {"w": 2 * np.eye(2, dtype=np.float32)})
    cast_model(model, plan_precision(model, "fp16"))
    proto = check_types(model)
    x = np.array([[1, -2], [3, 4]], np.float32)
    came = run_proto(proto, {"x": x})
    assert [value.name for value in proto.graph.output] == ["y", "z"]
    np.testing.assert_array_equal(came["y"], 2 * x)
    np.testing.assert_array_equal(came["z"], np.maximum(2 * x, 0))


def test_integers_and_comparisons_keep_their_types(make_graph: Any, check_types: Any, run_proto: Any) -> None:
    text = """(float[4] x, int64[2] i) => (float[2] y) {
        g = Gather(x, i)
        p = Greater(g, zero)
        n = Neg(g)
        y = Where(p, g, n)
    }"""
    model = make_graph(text, {"zero": np.float32(0)})
    cast_model(model, plan_precision(model, "fp16"))
    came = run_proto(check_types(model), {"x": np.array([1, -2, 3, -4], np.float32), "i": np.array([1, 2])})
    np.testing.assert_array_equal(came["y"], [2, 3])


@pytest.mark.parametrize("value", [70000.0, -1e38, 1e-9])
def test_a_constant_that_half_precision_cannot_hold_keeps_its_node(
    value: float, make_graph: Any, run_rounded: Any
) -> None:
    """65504 is the largest float16; an epsilon of 1e-9 would become zero."""
    text = (
        "(float[2] x) => (float[2] y) { m = MatMul(x, w)  r = Relu(m)  a = Add(r, c)  t = Tanh(a)  y = MatMul(t, w) }"
    )
    model = make_graph(text, {"w": np.eye(2, dtype=np.float32), "c": np.float32(value)})
    plan = plan_precision(model, "fp16")
    assert plan.kept == {"a": "constant_range"}
    came = run_rounded(model, plan, {"x": np.zeros(2, np.float32)})["y"]
    np.testing.assert_allclose(came, np.tanh(np.float32(value)), atol=1e-7)


def test_infinity_is_no_overflow(make_graph: Any) -> None:
    model = make_graph(
        "(float[2] x) => (float[2] y) { a = Relu(x) b = Add(a, c) y = Tanh(b) }",
        {"c": np.array([-np.inf, 0], np.float32)},
    )
    assert plan_precision(model, "fp16").kept == {}


def test_below_opset_17_is_refused(make_graph: Any) -> None:
    """Case V10."""
    model = make_graph("(float[2] x) => (float[2] y) { y = Relu(x) }", opset=16)
    with pytest.raises(UsageError, match=r"Opset 16.*LayerNormalization.*overflow"):
        plan_precision(model, "fp16")


def test_what_has_no_half_form_at_an_opset_stays(make_graph: Any) -> None:
    text = "(float[1,2,4,4] x) => (float[1,2,4,4] y) { h = Conv(x, w)  y = Relu(h) }"
    constants = {"w": np.ones((2, 2, 1, 1), np.float32)}
    assert plan_precision(make_graph(text, constants, opset=18), "bf16").kept == {"h": "no_half_form"}
    assert plan_precision(make_graph(text, constants, opset=22), "bf16").kept == {}


def test_an_unknown_island_is_a_mistake(make_graph: Any) -> None:
    model = make_graph("(float[2] x) => (float[2] y) { y = Relu(x) }")
    with pytest.raises(ValueError, match="box_decode"):
        plan_precision(model, "fp16", ("box_decode",))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_halves_are_the_nearest(values: list[float]) -> None:
    array = np.array(values, np.float32)
    came = to_half(array, ir.DataType.BFLOAT16).astype(np.float64)
    bits = array.view(np.uint32)
    below = (bits & 0xFFFF0000).view(np.float32).astype(np.float64)
    above = ((bits & 0xFFFF0000) + 0x10000).view(np.float32).astype(np.float64)
    nearest = np.minimum(np.abs(array - below), np.abs(array - above))
    np.testing.assert_array_equal(np.abs(array.astype(np.float64) - came), nearest)


def test_rounding_a_graph_without_half_changes_nothing(make_graph: Any) -> None:
    model = make_graph(MLP, mlp_constants(2))
    before = [node.op_type for node in model.graph]
    round_model(model)
    assert [node.op_type for node in model.graph] == before
