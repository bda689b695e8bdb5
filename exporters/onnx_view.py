"""A read-only view of an ONNX graph: what each value is and which node makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class TensorInfo:
    """Element type (`TensorProto.DataType`) and shape. None: a dimension without a fixed size, or an unknown rank."""

    dtype: int
    shape: Shape | None

    @property
    def is_static(self) -> bool:
        return self.shape is not None and None not in self.shape

    def __str__(self) -> str:
        dims = "unknown rank" if self.shape is None else "x".join("?" if d is None else str(d) for d in self.shape)
        return f"{TensorProto.DataType.Name(self.dtype)} ({dims})"


@dataclass(frozen=True)
class GraphView:
    """The main graph. `types` covers inputs, outputs, initializers and intermediate values."""

    graph: onnx.GraphProto
    opset: int | None
    types: Mapping[str, TensorInfo]
    makers: Mapping[str, onnx.NodeProto]

    @property
    def nodes(self) -> Sequence[onnx.NodeProto]:
        return tuple(self.graph.node)

    def type_of(self, name: str) -> TensorInfo:
        return self.types.get(name, TensorInfo(TensorProto.UNDEFINED, None))

    def origin(self, name: str) -> str:
        """Where a value comes from, for a message."""
        if name in self.makers:
            return f"made by {describe(self.makers[name])}"
        return "an initializer" if any(tensor.name == name for tensor in self.graph.initializer) else "an input"


def describe(node: onnx.NodeProto) -> str:
    """The node as a user can find it in a viewer."""
    return f"{node.op_type} '{node.name or (node.output[0] if node.output else '')}'"


def view(model: onnx.ModelProto) -> GraphView:
    """Index a graph; what is not in its `value_info` has no known type."""
    graph = model.graph
    values = (*graph.value_info, *graph.input, *graph.output)
    types = {value.name: _info(value.type.tensor_type) for value in values}
    types |= {tensor.name: TensorInfo(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output if name}
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), None)
    return GraphView(graph, opset, types, makers)


def _info(kind: onnx.TypeProto.Tensor) -> TensorInfo:
    if not kind.HasField("shape"):
        return TensorInfo(kind.elem_type, None)
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim)
    return TensorInfo(kind.elem_type, dims)
