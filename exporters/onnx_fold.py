"""Turns everything in a graph that does not depend on its inputs into initializers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from vtk.exporters.onnx_rules import RANDOM_OPS

MAX_GROWN_ELEMENTS = 1 << 24


def fold_constants(model: ir.Model) -> None:
    """Evaluate, in place, every node whose inputs are all constants (RoPE tables, ranges, expanded embeddings, …).

    A result larger than both its inputs and `MAX_GROWN_ELEMENTS` stays a node, so that an Expand cannot blow the file
    up. Transposed or split weights are NumPy views: nothing is copied before the data is written. Sources that are no
    longer used stay behind: remove them afterwards.
    """
    opset = model.opset_imports[""]
    for node in list(model.graph):
        inputs = [value.const_value for value in node.inputs if value is not None]
        if _is_foldable(node) and all(tensor is not None for tensor in inputs):
            results = _evaluate(node, opset)
            largest = max(MAX_GROWN_ELEMENTS, sum(tensor.size for tensor in inputs))
            if results is not None and sum(result.size for result in results) <= largest:
                _replace(model.graph, node, results)


def _is_foldable(node: ir.Node) -> bool:
    has_subgraph = any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values())
    is_output = any(value.is_graph_output() for value in node.outputs)
    return node.domain == "" and node.op_type not in RANDOM_OPS and not has_subgraph and not is_output


def _evaluate(node: ir.Node, opset: int) -> list[npt.NDArray[np.generic]] | None:
    feeds = {value.name: value.const_value.numpy() for value in node.inputs if value is not None}
    try:
        evaluator = ReferenceEvaluator(ir.to_proto(node), opsets={"": opset})
    except NotImplementedError:
        return None
    with np.errstate(all="ignore"):  # log(0) is a common mask, and torch does not warn either
        return [np.asarray(result) for result in evaluator.run(None, feeds)]


def _replace(graph: ir.Graph, node: ir.Node, results: Sequence[npt.NDArray[np.generic]]) -> None:
    for old, result in zip(node.outputs, results, strict=True):
        tensor = ir.tensor(result, dtype=old.dtype, name=old.name)
        new = ir.Value(name=old.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        ir.convenience.replace_all_uses_with(old, new)
        old.name = None
        graph.register_initializer(new)
    graph.remove(node, safe=True)
