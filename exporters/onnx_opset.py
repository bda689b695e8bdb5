"""Opset 18 graphs rewritten for opset 17, the oldest with LayerNormalization. The exporter itself starts at 18."""

from __future__ import annotations

import onnx_ir as ir

EXPORTER_OPSET = 18
REDUCTIONS = frozenset(
    {
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSumSquare",
    }
)

NEW_RESIZE_DEFAULTS = {"antialias": 0, "keep_aspect_ratio_policy": "stretch"}


def to_opset_17(model: ir.Model) -> None:
    """Undo, in place, what opset 18 changed in Split, Resize and the reductions; needs a folded graph.

    Anything else that is new in opset 18 is left as it is, for the ONNX checker to refuse.
    """
    for node in model.graph:
        if node.op_type in REDUCTIONS:
            _axes_to_attribute(node)
        elif node.op_type == "Split" and _splits_evenly(node):
            node.attributes.pop("num_outputs", None)
        elif node.op_type == "Resize":
            _drop_new_defaults(node)
    model.opset_imports[""] = 17


def _axes_to_attribute(node: ir.Node) -> None:
    axes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if axes is not None:
        node.attributes["axes"] = ir.AttrInt64s("axes", [int(axis) for axis in axes.numpy().reshape(-1)])
        node.resize_inputs(1)
        node.attributes.pop("noop_with_empty_axes", None)


def _splits_evenly(node: ir.Node) -> bool:
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    return len({value.shape[axis] for value in node.outputs}) == 1


def _drop_new_defaults(node: ir.Node) -> None:
    for name, default in NEW_RESIZE_DEFAULTS.items():
        if name in node.attributes and node.attributes[name].value == default:
            del node.attributes[name]
