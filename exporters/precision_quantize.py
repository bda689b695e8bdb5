"""Quantized layers as QuantizeLinear and DequantizeLinear around stored weights, the form that every engine reads.

Weights are symmetric with one scale per output channel; the value that a layer reads is symmetric with one scale, which
comes from calibration. The layers keep computing in float32 as far as the graph says; an engine fuses the pairs into
8-bit kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnx_ir.passes.common as passes

from vtk.exporters.onnx_walk import computed, is_constant, is_float, is_linear
from vtk.exporters.precision_islands import DEFAULT_KINDS, find_islands

# What rounds most in 8 bits: the layer that reads the picture, and the one before each output.
KEPT_KINDS = (*DEFAULT_KINDS, "first_layer", "heads")
_ZERO = "quantized_zero"
_FLOOR = "relu_floor"


@dataclass(frozen=True)
class Format:
    """An 8-bit type. top: the number that the largest magnitude is scaled to."""

    dtype: ir.DataType
    top: float


FORMATS: Mapping[str, Format] = {
    "int8": Format(ir.DataType.INT8, 127.0),
    "fp8": Format(ir.DataType.FLOAT8E4M3FN, 448.0),
}


def quantizable(model: ir.Model) -> list[ir.Node]:
    """Convolutions and matrix products with stored weights, but those of `KEPT_KINDS`."""
    kept = find_islands(model.graph, KEPT_KINDS)
    return [node for node in model.graph if node not in kept and _reads_weights(node)]


def observed(model: ir.Model) -> list[str]:
    """Names of the values whose range a calibration must find: what the quantizable layers read."""
    return list(dict.fromkeys(str(node.inputs[0].name) for node in quantizable(model) if node.inputs[0] is not None))


def quantize_model(model: ir.Model, ranges: Mapping[str, float], form: Format) -> None:
    """Quantize, in place. ranges: largest magnitude to represent, by value name; a value that is always 0 stays."""
    graph = model.graph
    pairs: dict[ir.Value, ir.Value] = {}
    for node in quantizable(model):
        source, weights = node.inputs[0], node.inputs[1]
        assert source is not None
        assert weights is not None
        if ranges[str(source.name)] > 0:
            if source not in pairs:
                _write_out_relu(graph, source)
                pairs[source] = _quantized(graph, node, source, ranges[str(source.name)] / form.top, form)
            node.replace_input_with(0, pairs[source])
            node.replace_input_with(1, _stored(graph, node, weights, form))
    passes.RemoveUnusedNodesPass()(model)


def share_quantized(model: ir.Model) -> float:
    """Share of the parameters that are stored in 8 bits."""
    kinds = {form.dtype for form in FORMATS.values()}
    values = [value for value in model.graph.initializers.values() if value.const_value is not None]
    eight = sum(value.const_value.size for value in values if value.dtype in kinds and value.const_value is not None)
    full = sum(value.const_value.size for value in values if is_float(value) and value.const_value is not None)
    return eight / (eight + full) if eight + full else 0.0


def _reads_weights(node: ir.Node) -> bool:
    if node.op_type not in ("Conv", "MatMul", "Gemm") or not is_linear(node):
        return False
    return is_constant(node.inputs[1]) and node.inputs[0] in computed(node)


def _channel_axis(node: ir.Node) -> int:
    """The axis of the weights that is the output channel."""
    if node.op_type == "Conv":
        return 0
    transposed = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int() == 1
    rank = len(node.inputs[1].shape) if node.inputs[1] is not None and node.inputs[1].shape is not None else 2
    return 0 if transposed else rank - 1


def _quantized(graph: ir.Graph, user: ir.Node, value: ir.Value, scale: float, form: Format) -> ir.Value:
    """The value through 8 bits and back, right before its first user."""
    step = _constant(graph, f"{value.name}_scale", np.asarray(scale, np.float32))
    zero = _zero(graph, form, ())
    small = ir.Value(name=f"{value.name}_8bit", shape=value.shape, type=ir.TensorType(form.dtype))
    back = ir.Value(name=f"{value.name}_dequantized", shape=value.shape, type=ir.TensorType(ir.DataType.FLOAT))
    nodes = (
        ir.Node("", "QuantizeLinear", [value, step, zero], outputs=[small], name=f"quantize_{value.name}"),
        ir.Node("", "DequantizeLinear", [small, step, zero], outputs=[back], name=f"dequantize_{value.name}"),
    )
    graph.insert_before(user, nodes)
    return back


def _write_out_relu(graph: ir.Graph, value: ir.Value) -> None:
    """Make the Relu behind a value a Max.

    Before a float8 QuantizeLinear, ONNX Runtime (seen in 1.32) drops a Relu, as if the zero of that type were its
    smallest number, and fails at a Clip.
    """
    relu = value.producer()
    if relu is None or relu.op_type != "Relu":
        return
    if _FLOOR not in graph.initializers:
        _constant(graph, _FLOOR, np.zeros((), np.float32))
    relu.op_type = "Max"
    relu.resize_inputs(2)
    relu.replace_input_with(1, graph.initializers[_FLOOR])


def _stored(graph: ir.Graph, node: ir.Node, weights: ir.Value, form: Format) -> ir.Value:
    """The weights in 8 bits, with a DequantizeLinear before their layer."""
    axis = _channel_axis(node)
    name = f"{weights.name}_8bit_{axis}"
    if name not in graph.initializers:
        array = weights.const_value.numpy() if weights.const_value is not None else np.zeros(0, np.float32)
        small, scales = quantize_weights(array, axis, form)
        _constant(graph, name, small, form.dtype)
        _constant(graph, f"{name}_scale", scales)
    label = f"{name}_for_{node.outputs[0].name}"
    back = ir.Value(name=label, shape=weights.shape, type=ir.TensorType(ir.DataType.FLOAT))
    inputs = [graph.initializers[name], graph.initializers[f"{name}_scale"]]
    attributes = [ir.AttrInt64("axis", axis)]
    graph.insert_before(node, ir.Node("", "DequantizeLinear", inputs, attributes, outputs=[back], name=label))
    return back


def quantize_weights(
    weights: npt.NDArray[np.float32], axis: int, form: Format
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32]]:
    """(8-bit weights, scale per channel): weights = 8-bit * scale along `axis`; a channel of zeros has scale 1."""
    others = tuple(index for index in range(weights.ndim) if index != axis)
    top = np.abs(weights).max(axis=others)
    scales = np.where(top > 0, top / form.top, 1.0).astype(np.float32)
    shape = [1] * weights.ndim
    shape[axis] = -1
    scaled = weights / scales.reshape(shape)
    if form.dtype == ir.DataType.INT8:
        scaled = np.rint(scaled)
    return np.clip(scaled, -form.top, form.top).astype(form.dtype.numpy()), scales


def _zero(graph: ir.Graph, form: Format, shape: tuple[int, ...]) -> ir.Value:
    if _ZERO not in graph.initializers:
        _constant(graph, _ZERO, np.zeros(shape, np.float32).astype(form.dtype.numpy()), form.dtype)
    return graph.initializers[_ZERO]


def _constant(
    graph: ir.Graph, name: str, array: npt.NDArray[np.generic], dtype: ir.DataType = ir.DataType.FLOAT
) -> ir.Value:
    tensor = ir.tensor(array, dtype=dtype, name=name)
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(dtype), const_value=tensor)
    graph.register_initializer(value)
    return value
