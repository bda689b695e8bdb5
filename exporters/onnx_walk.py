"""Walking a graph backwards: what leads to a value, up to the layers with stored weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx_ir as ir

MOVEMENT = frozenset(
    {
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Pad",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
ELEMENTWISE = frozenset(
    {
        "Abs",
        "Add",
        "Cast",
        "Ceil",
        "Clip",
        "Cos",
        "Div",
        "Equal",
        "Exp",
        "Floor",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Pow",
        "Reciprocal",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Round",
        "Sigmoid",
        "Sin",
        "Sqrt",
        "Sub",
        "Where",
    }
)
LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is float32; False for an input that is left out."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is stored in the graph."""
    return value is not None and value.const_value is not None


def computed(node: ir.Node) -> list[ir.Value]:
    """The floating inputs of a node that are not stored."""
    return [value for value in node.inputs if value is not None and is_float(value) and not is_constant(value)]


def is_linear(node: ir.Node | None) -> bool:
    """A layer with stored weights; not a product of two computed values, nor the mean of a distribution."""
    return (
        node is not None
        and node.op_type in LINEAR
        and any(is_constant(value) for value in node.inputs[:2])
        and not _is_expectation(node)
    )


def is_bias(node: ir.Node) -> bool:
    """The addition of stored values to what a layer gave."""
    return (
        node.op_type == "Add"
        and len(computed(node)) == 1
        and any(is_linear(value.producer()) for value in computed(node))
    )


def _is_expectation(node: ir.Node) -> bool:
    """A softmax times fixed bin values: the integral of a distribution over the edges of a box."""
    if node.op_type not in LINEAR or len(computed(node)) != 1:
        return False
    maker = computed(node)[0].producer()
    while maker is not None and maker.op_type in MOVEMENT and computed(maker):
        maker = computed(maker)[0].producer()
    return maker is not None and maker.op_type == "Softmax"


def _is_distribution(node: ir.Node) -> bool:
    """A softmax whose mean is taken."""
    if node.op_type != "Softmax":
        return False
    users = list(node.outputs[0].consumers())
    while users:
        user = users.pop()
        if _is_expectation(user):
            return True
        if user.op_type in MOVEMENT:
            users += user.outputs[0].consumers()
    return False


def _is_activation(node: ir.Node) -> bool:
    """x * sigmoid(x)."""
    if node.op_type != "Mul" or len(computed(node)) != 2:
        return False
    for gate, other in (node.inputs, tuple(reversed(node.inputs))):
        maker = None if gate is None else gate.producer()
        if maker is not None and maker.op_type == "Sigmoid" and maker.inputs[0] is other:
            return True
    return False


def is_light(node: ir.Node) -> bool:
    """Rearranges or combines values without stored weights: what a walk back passes through."""
    if _is_expectation(node) or _is_distribution(node):
        return True
    light = node.op_type in MOVEMENT or node.op_type in ELEMENTWISE
    return light and not is_bias(node) and not _is_activation(node)


def walk_back(
    starts: Iterable[ir.Value | None], passes: Callable[[ir.Node], bool] = is_light
) -> tuple[list[ir.Node], list[ir.Node]]:
    """Nodes behind `starts` that `passes` lets through, and those at which the walk ends."""
    inside: dict[ir.Node, None] = {}
    border: dict[ir.Node, None] = {}
    pending = [value for value in starts if value is not None and is_float(value)]
    while pending:
        node = pending.pop().producer()
        if node is None or node in inside:
            continue
        if passes(node):
            inside[node] = None
            pending += [value for value in node.inputs if value is not None and is_float(value)]
        else:
            border[node] = None
    return list(inside), list(border)
