"""A float32 graph that rounds as a half-precision one does, for runtimes that do not compute in half precision.

ONNX Runtime's CPU kernels compute float16 operators in float32 and keep float32 between them, so that an overflow that
every GPU would have does not show; bfloat16 has almost no kernels there. Here each result that the cast graph holds in
half precision passes through that type and back, which is what an engine with float32 accumulators computes.
"""

from __future__ import annotations

import onnx_ir as ir

from vtk.exporters.onnx_walk import MOVEMENT
from vtk.exporters.precision import HALF_TYPES

_HALF = frozenset(HALF_TYPES.values())


def round_model(model: ir.Model) -> None:
    """Rewrite, in place, a graph that `cast_model` made. Its initializers stay in half precision."""
    graph = model.graph
    rounded: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        for index, value in enumerate(node.inputs):
            if value is not None and value.is_initializer() and value.dtype in _HALF and value not in rounded:
                rounded[value] = _cast(value, ir.DataType.FLOAT)
                graph.insert_before(node, _maker(rounded[value]))
            if value in rounded:
                node.replace_input_with(index, rounded[value])
        for output in node.outputs:
            if output.dtype in _HALF:
                rounded[output] = _round(graph, node, output)


def _round(graph: ir.Graph, node: ir.Node, output: ir.Value) -> ir.Value:
    """What stands for a half-precision output from here on: float32, rounded where the node computed it."""
    half = output.dtype
    assert half is not None
    if node.op_type == "Cast":
        back = _cast(output, ir.DataType.FLOAT)
        graph.insert_after(node, _maker(back))
        return back
    output.type = ir.TensorType(ir.DataType.FLOAT)
    if node.op_type in MOVEMENT:
        return output
    there = _cast(output, half)
    back = _cast(there, ir.DataType.FLOAT)
    graph.insert_after(node, (_maker(there), _maker(back)))
    return back


def _cast(value: ir.Value, kind: ir.DataType) -> ir.Value:
    output = ir.Value(name=f"{value.name}_as_{kind.name.lower()}", shape=value.shape, type=ir.TensorType(kind))
    ir.Node("", "Cast", [value], [ir.AttrInt64("to", kind.value)], outputs=[output], name=f"round_{output.name}")
    return output


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
