"""Casts a float32 graph to half precision as a plan says: strongly typed, with a Cast wherever the type changes."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from vtk.exporters.onnx_walk import is_float
from vtk.exporters.precision import FLOAT_INPUTS, PrecisionPlan, is_floating, key_of, to_half


def cast_model(model: ir.Model, plan: PrecisionPlan) -> None:
    """Cast, in place, every floating node that the plan does not keep. Graph inputs and outputs stay float32."""
    caster = _Caster(model.graph, plan.half)
    for node in list(model.graph):
        if is_floating(node):
            caster.type_node(node, half=key_of(node) not in plan.kept)
    caster.restore_outputs()
    passes.RemoveUnusedNodesPass()(model)


class _Caster:
    """One pass over a graph in its order: when a node is typed, the nodes that feed it already are."""

    def __init__(self, graph: ir.Graph, half: ir.DataType) -> None:
        self._graph = graph
        self._half = half
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def type_node(self, node: ir.Node, *, half: bool) -> None:
        wanted = self._half if half else ir.DataType.FLOAT
        fixed = FLOAT_INPUTS.get(node.op_type, ())
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in (ir.DataType.FLOAT, self._half):
                kind = ir.DataType.FLOAT if index in fixed else wanted
                node.replace_input_with(index, self._as_type(value, kind, node))
        if half:
            for output in node.outputs:
                if is_float(output):
                    output.type = ir.TensorType(self._half)

    def restore_outputs(self) -> None:
        """A graph output that became half gets its name and type back behind a Cast."""
        for index, value in enumerate(self._graph.outputs):
            if value.dtype == self._half:
                name, value.name = value.name, f"{value.name}_half"
                output = self._cast(value, ir.DataType.FLOAT, name)
                self._graph.append(output.producer())
                self._graph.outputs[index] = output

    def _as_type(self, value: ir.Value, kind: ir.DataType, user: ir.Node) -> ir.Value:
        if value.dtype == kind:
            return value
        if (value, kind) not in self._casts:
            name = f"{value.name}_{kind.name.lower()}"
            if value.const_value is not None:
                self._casts[value, kind] = self._constant(value, kind, name)
            else:
                output = self._cast(value, kind, name)
                self._graph.insert_before(user, output.producer())
                self._casts[value, kind] = output
        return self._casts[value, kind]

    def _cast(self, value: ir.Value, kind: ir.DataType, name: str | None) -> ir.Value:
        output = ir.Value(name=name, shape=value.shape, type=ir.TensorType(kind))
        ir.Node("", "Cast", [value], [ir.AttrInt64("to", kind.value)], outputs=[output], name=f"cast_{name}")
        return output

    def _constant(self, value: ir.Value, kind: ir.DataType, name: str) -> ir.Value:
        source = value.const_value
        assert source is not None
        tensor = ir.LazyTensor(
            lambda: ir.tensor(to_half(source.numpy(), kind), dtype=kind, name=name), kind, source.shape, name=name
        )
        constant = ir.Value(name=name, shape=source.shape, type=ir.TensorType(kind), const_value=tensor)
        self._graph.register_initializer(constant)
        return constant
