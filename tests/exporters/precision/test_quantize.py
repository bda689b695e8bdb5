"""8-bit layers: where the pairs go, what they store, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.exporters.precision_quantize import (
    FORMATS,
    observed,
    quantizable,
    quantize_model,
    quantize_weights,
    share_quantized,
)

# first and last layer stay, the two in the middle are quantized
NET = """(float[2,3,4,4] images) => (float[2,5] y) {
    a = Conv(images, w0)
    r = Relu(a)
    b = Conv(r, w1, bias)
    s = Relu(b)
    c = Conv(s, w2)
    flat = Flatten(c)
    y = Gemm <transB=1> (flat, w3)
}"""


def constants(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"w0": (6, 3, 1, 1), "w1": (7, 6, 1, 1), "bias": (7,), "w2": (2, 7, 1, 1), "w3": (5, 32)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_the_first_layer_and_the_heads_stay(make_graph: Any) -> None:
    model = make_graph(NET, constants(0), opset=19)
    assert [node.outputs[0].name for node in quantizable(model)] == ["b", "c"]
    assert observed(model) == ["r", "s"]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_the_graph_computes_with_quantized_numbers(
    kind: str, make_graph: Any, check_types: Any, run_proto: Any
) -> None:
    """Against the same steps in NumPy."""
    form, values = FORMATS[kind], constants(1)
    model = make_graph(NET, values, opset=19)
    images = np.random.default_rng(2).normal(size=(2, 3, 4, 4)).astype(np.float32)
    first = np.maximum(conv(images, values["w0"]), 0)
    second = np.maximum(conv(first, values["w1"]) + values["bias"][:, None, None], 0)
    ranges = {"r": float(np.abs(first).max()), "s": float(np.abs(second).max())}
    quantize_model(model, ranges, form)
    assert 0 < share_quantized(model) < 1
    came = run_proto(check_types(model), {"images": images})["y"]

    through = np.maximum(
        conv(rounded(first, ranges["r"], form), weights(values["w1"], form)) + values["bias"][:, None, None], 0
    )
    last = conv(rounded(through, ranges["s"], form), weights(values["w2"], form))
    np.testing.assert_allclose(came, last.reshape(2, -1) @ values["w3"].T, rtol=1e-4, atol=1e-4)


def conv(x: Any, w: Any) -> Any:
    return np.einsum("nchw,kc->nkhw", x, w[:, :, 0, 0])


def rounded(array: Any, top: float, form: Any) -> Any:
    scale = np.float32(top / form.top)
    steps = np.rint(array / scale) if form.dtype == ir.DataType.INT8 else array / scale
    return np.clip(steps, -form.top, form.top).astype(form.dtype.numpy()).astype(np.float32) * scale


def weights(array: Any, form: Any) -> Any:
    small, scales = quantize_weights(array, 0, form)
    return small.astype(np.float32) * scales[:, None, None, None]


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([(3, 5), (4, 2, 3, 3)]),
    st.integers(0, 1),
    st.sampled_from(["int8", "fp8"]),
)
@settings(max_examples=40, deadline=None)
def test_weights_are_within_half_a_step_of_their_channel(
    seed: int, shape: tuple[int, ...], axis: int, kind: str
) -> None:
    form = FORMATS[kind]
    rng = np.random.default_rng(seed)
    array = (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3)).astype(np.float32)
    small, scales = quantize_weights(array, axis, form)
    around = [1] * len(shape)
    around[axis] = -1
    error = np.abs(small.astype(np.float32) * scales.reshape(around) - array)
    # int8: half a step; float8 with three bits of fraction: 1/16 of the number, or half of the smallest step, 2 ** -9
    steps = scales.reshape(around)
    limit = steps / 2 if kind == "int8" else np.maximum(np.abs(array) / 16, steps * 2**-10)
    assert (error <= limit * 1.001).all()


def test_a_channel_of_zeros_stays_zero() -> None:
    small, scales = quantize_weights(np.zeros((2, 3), np.float32), 0, FORMATS["int8"])
    assert not small.any()
    assert scales.tolist() == [1, 1]


def test_a_value_that_is_always_zero_is_left_alone(make_graph: Any, check_types: Any) -> None:
    model = make_graph(NET, constants(3), opset=19)
    quantize_model(model, {"r": 0.0, "s": 1.0}, FORMATS["int8"])
    check_types(model)
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph) == 1


def test_products_of_two_computed_values_are_not_quantized(make_graph: Any) -> None:
    text = """(float[1,4,8] x) => (float[1,4,8] y) {
        e = MatMul(x, w)
        q = MatMul(e, w)
        kt = Transpose <perm=[0,2,1]> (e)
        s = MatMul(q, kt)
        p = Softmax <axis=-1> (s)
        o = MatMul(p, e)
        y = MatMul(o, w)
    }"""
    model = make_graph(text, {"w": np.eye(8, dtype=np.float32)})
    assert [node.outputs[0].name for node in quantizable(model)] == ["q"]
