"""The precision of a graph: what stays in float32 and why (the plan), and how much became half (the share)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from vtk.errors import UsageError
from vtk.exporters.onnx_rules import MIN_OPSET
from vtk.exporters.onnx_walk import is_float
from vtk.exporters.precision_islands import DEFAULT_KINDS, FINDERS, MIXED_KINDS, REASONS, find_islands
from vtk.exporters.precision_terms import Precision

HALF_TYPES: Mapping[Precision, ir.DataType] = {
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "mixed": ir.DataType.FLOAT16,
}
# Below this share of half parameters a graph is not called fp16 or bf16.
MIN_HALF = 0.5
# bfloat16 convolutions and poolings came with it.
BF16_OPSET = 22
# QuantizeLinear knows float8 from then on.
FP8_OPSET = 19
# Constants up to this size are numbers of a formula (an epsilon, a bound), where one that vanishes changes the result.
SMALL_CONSTANT = 16
# Inputs that ONNX wants in float32 whatever the type of the others.
FLOAT_INPUTS: Mapping[str, tuple[int, ...]] = {"Resize": (1, 2)}


@dataclass(frozen=True)
class PrecisionPlan:
    """What stays in float32. kept: kind of island by the name of the node's first output; nodes: floating nodes in all.

    precision is what was asked for: fp16, bf16, or mixed (float16 with the wider islands of `MIXED_KINDS`).
    """

    precision: Precision
    kept: Mapping[str, str]
    nodes: int

    @property
    def half(self) -> ir.DataType:
        return HALF_TYPES[self.precision]

    def groups(self) -> tuple[tuple[str, int, str], ...]:
        """(kind, number of nodes, reason), the largest first."""
        counts = Counter(self.kept.values())
        return tuple((kind, count, REASONS[kind]) for kind, count in counts.most_common())


@dataclass(frozen=True)
class HalfShare:
    """How much of a graph is in half precision, measured on the graph as built: of nodes, and of parameters."""

    nodes: float
    parameters: float

    def __str__(self) -> str:
        return f"{self.parameters:.0%} of the parameters and {self.nodes:.0%} of the nodes"


def plan_precision(
    model: ir.Model, precision: Precision, islands: Iterable[str] = (), *, is_decoder: bool = False
) -> PrecisionPlan:
    """Decide node by node. `islands`: kinds that the family asks for beyond the defaults.

    is_decoder: the whole graph is what the kind `decoder` finds in others, which begins with a selection of queries.
    Raises UsageError below opset 17, where layer norms are in pieces that overflow in half precision.
    """
    opset = model.opset_imports[""]
    if opset < MIN_OPSET:
        raise UsageError(
            f"Opset {opset} cannot be cast to {precision}: it splits LayerNormalization into Pow and Reduce, which "
            "overflow in half precision.",
            hint=f"Use --opset {MIN_OPSET} or newer.",
        )
    if unknown := set(islands) - FINDERS.keys():
        raise ValueError(f"unknown islands {sorted(unknown)}; known are {sorted(FINDERS)}")
    half = HALF_TYPES[precision]
    kinds = dict.fromkeys((*DEFAULT_KINDS, *islands, *(MIXED_KINDS if precision == "mixed" else ())))
    marks = find_islands(model.graph, kinds)
    for node in model.graph:
        if node in marks:
            continue
        if is_decoder and "decoder" in kinds:
            marks[node] = "decoder"
        elif not _has_half_form(node, opset, half):
            marks[node] = "no_half_form"
        elif any(_is_lost(value, half) for value in castable_inputs(node)):
            marks[node] = "constant_range"
    floating = [node for node in model.graph if is_floating(node)]
    return PrecisionPlan(precision, {key_of(node): marks[node] for node in floating if node in marks}, len(floating))


def key_of(node: ir.Node) -> str:
    """A node's name in a plan: values are unique in a graph, node names need not be."""
    return str(node.outputs[0].name)


def is_floating(node: ir.Node) -> bool:
    """Whether a node computes with floating point; a cast or a comparison reads it only."""
    return node.op_type != "Cast" and any(is_float(value) for value in (*node.inputs, *node.outputs))


def castable_inputs(node: ir.Node) -> list[ir.Value]:
    """The floating inputs whose type follows that of the node."""
    fixed = FLOAT_INPUTS.get(node.op_type, ())
    return [
        value for index, value in enumerate(node.inputs) if value is not None and is_float(value) and index not in fixed
    ]


def measure(model: ir.Model) -> HalfShare:
    """Count nodes by the type of what they give, and parameters by the type that they are stored in."""
    half_types = set(HALF_TYPES.values())
    nodes = [value.dtype for node in model.graph if node.op_type != "Cast" for value in node.outputs[:1]]
    elements: Counter[bool] = Counter()
    for value in model.graph.initializers.values():
        if value.dtype in (*half_types, ir.DataType.FLOAT) and value.const_value is not None:
            elements[value.dtype in half_types] += value.const_value.size
    return HalfShare(
        _share(sum(kind in half_types for kind in nodes), sum(kind == ir.DataType.FLOAT for kind in nodes)),
        _share(elements[True], elements[False]),
    )


def _share(half: int, full: int) -> float:
    return half / (half + full) if half + full else 0.0


def _is_lost(value: ir.Value, half: ir.DataType) -> bool:
    """Whether a constant does not survive: one that overflows, or a number of a formula that becomes zero."""
    if value.const_value is None:
        return False
    numbers = value.const_value.numpy()
    finite = numbers[np.isfinite(numbers)]
    with np.errstate(over="ignore"):
        if not np.isfinite(to_half(np.asarray([np.abs(finite).max(initial=0.0)]), half)).all():
            return True
        return bool(numbers.size <= SMALL_CONSTANT and (to_half(finite, half)[finite != 0] == 0).any())


def to_half(array: npt.NDArray[np.generic], half: ir.DataType) -> npt.NDArray[np.generic]:
    """Rounded to nearest, ties to even."""
    return array.astype(half.numpy())


def _has_half_form(node: ir.Node, opset: int, half: ir.DataType) -> bool:
    if node.domain not in ("", "ai.onnx") or not is_floating(node):
        return True
    return _allows(node.op_type, opset, f"tensor({half.name.lower()})")


@cache
def _allows(op_type: str, opset: int, half: str) -> bool:
    """Whether each input of the operator that may be float32 may be `half` too."""
    schema = onnx.defs.get_schema(op_type, opset, "")
    read = {item.type_str for item in schema.inputs}
    allowed = [kind.allowed_type_strs for kind in schema.type_constraints if kind.type_param_str in read]
    return all(half in types for types in allowed if "tensor(float)" in types)
