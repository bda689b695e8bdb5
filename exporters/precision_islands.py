"""Which nodes of a float32 graph stay in float32 when the rest is cast to half precision, and why.

Islands are found by structure, not by name: a softmax and the product that feeds it, what leads to a box, a sampling
location or a selection, back to the linear layer that it came from. Each kind has its reason in `REASONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import onnx_ir as ir

from vtk.exporters.onnx_walk import ELEMENTWISE, MOVEMENT, computed, is_bias, is_float, is_light, is_linear, walk_back

Marks = dict[ir.Node, str]

REASONS: Mapping[str, str] = {
    "layer_norm": "its sum of squares overflows float16 from inputs of 256 on",
    "attention_scores": "products of queries and keys overflow, and softmax amplifies their rounding",
    "softmax": "exponentials span more than half precision holds",
    "rope": "rounding the rotation of queries and keys moves their positions",
    "query_selection": "rounded scores select other queries",
    "sampling_locations": "a location with 11 bits or less misses the pixel on a large map",
    "box_refinement": "boxes are sums of small steps, and users see each pixel",
    "outputs": "what is reported keeps its digits",
    "reductions": "sums over many elements lose digits or overflow",
    "wide_range": "powers, exponentials and logarithms leave the range of half precision",
    "constant_range": "a constant of it overflows or vanishes in half precision",
    "no_half_form": "ONNX does not define it in this precision at this opset",
    "residual_stream": "rounding errors of all blocks add up in it",
    "decoder": "each layer moves the boxes that the next one samples at",
    "heads": "the last layer before each output decides scores and boxes",
    "first_layer": "the layer that reads the picture is cheap, and what it loses is lost",
}
DEFAULT_KINDS = (
    "layer_norm",
    "query_selection",
    "box_refinement",
    "sampling_locations",
    "attention_scores",
    "rope",
    "softmax",
    "outputs",
    "reductions",
    "wide_range",
)
MIXED_KINDS = ("residual_stream", "decoder", "heads", "first_layer")

_NORMS = frozenset(
    {
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "RMSNormalization",
    }
)
_REDUCTIONS = frozenset(
    {
        "CumSum",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMean",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    }
)
_WIDE = frozenset({"Exp", "Log", "Pow", "Reciprocal", "Softplus", "Sqrt"})
_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
# kinds whose values stay exact while they are only rearranged or combined with each other
_COORDINATES = ("query_selection", "sampling_locations", "box_refinement")


def find_islands(graph: ir.Graph, kinds: Iterable[str]) -> Marks:
    """Node to kind, for the asked kinds; a node that several kinds claim belongs to the first in their order."""
    marks: Marks = {}
    for kind in kinds:
        for node in FINDERS[kind](graph):
            marks.setdefault(node, kind)
    _keep_coordinates(graph, marks)
    _trim_movement(graph, marks)
    return marks


def _nodes(graph: ir.Graph, *op_types: str) -> Iterator[ir.Node]:
    return (node for node in graph if node.op_type in op_types)


def _layer_norms(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from _nodes(graph, *_NORMS)
    for mean in _nodes(graph, "ReduceMean"):
        if _is_square(computed(mean)):
            yield from _decomposed_norm(mean)


def _is_square(values: list[ir.Value]) -> bool:
    maker = values[0].producer() if values else None
    if maker is None:
        return False
    return maker.op_type == "Pow" or (maker.op_type == "Mul" and maker.inputs[0] is maker.inputs[1])


def _decomposed_norm(mean: ir.Node) -> Iterator[ir.Node]:
    """From the square to the division by the root of its mean, which may be taken axis by axis."""
    square = computed(mean)[0].producer()
    assert square is not None
    yield square
    node: ir.Node | None = mean
    while node is not None:
        yield node
        joins = len(computed(node)) > 1
        users = node.outputs[0].consumers()
        on_path = len(users) == 1 and not joins and users[0].op_type in (*ELEMENTWISE, "ReduceMean")
        node = users[0] if on_path else None


def _query_selection(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in _nodes(graph, "TopK", "ArgMax", "ArgMin"):
        yield node
        yield from walk_back(node.inputs)[0]


def _sampling_locations(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in _nodes(graph, "GridSample", "RoiAlign"):
        yield node
        yield from walk_back(node.inputs[1:])[0]
    for node in _nodes(graph, "Cast"):
        if is_float(node.inputs[0]) and node.outputs[0].dtype in _INTEGERS:
            yield from walk_back(node.inputs)[0]
    for node in _nodes(graph, "Sin", "Cos"):
        yield from (node, *_behind_wave(node))


def _behind_wave(node: ir.Node) -> Iterator[ir.Node]:
    """A place that becomes a wave, the shortest of a few pixels; through its frequencies if it is an input itself."""
    inside, border = walk_back(node.inputs)
    yield from (*inside, *_with_bias(border))
    for linear in border:
        before, further = walk_back(computed(linear))
        if not further:
            yield from before


def _box_refinement(graph: ir.Graph) -> Iterator[ir.Node]:
    for output in graph.outputs:
        inside = walk_back([output])[0]
        if any(node.op_type in ("Sigmoid", "Softmax", "Log") for node in inside):
            yield from inside


def _scores_of(softmax: ir.Node) -> tuple[list[ir.Node], list[ir.Node]]:
    """The light nodes before a softmax, and the products of two computed values in which they end."""
    inside, border = walk_back(softmax.inputs)
    products = [node for node in border if node.op_type in ("MatMul", "Einsum") and len(computed(node)) == 2]
    return (inside, products) if products else ([], [])


def _attention_scores(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from _nodes(graph, "Attention", "MultiHeadAttention")
    for softmax in _nodes(graph, "Softmax"):
        inside, products = _scores_of(softmax)
        yield from (*inside, *products)
        for product in products:
            yield from _scaling(product)


def _scaling(product: ir.Node) -> Iterator[ir.Node]:
    """The multiplication by a scalar right before a product, behind mere rearrangement."""
    for value in product.inputs:
        node = None if value is None else value.producer()
        while node is not None and node.op_type in MOVEMENT:
            yield node
            node = node.inputs[0].producer() if node.inputs[0] is not None else None
        if node is not None and node.op_type in ("Mul", "Div") and len(computed(node)) == 1:
            yield node


def _rope(graph: ir.Graph) -> Iterator[ir.Node]:
    for softmax in _nodes(graph, "Softmax"):
        for product in _scores_of(softmax)[1]:
            yield from walk_back(product.inputs)[0]


def _softmaxes(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from _nodes(graph, "Softmax", "LogSoftmax", "Hardmax")


def _outputs(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from walk_back(graph.outputs)[0]


def _reductions(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from _nodes(graph, *_REDUCTIONS)


def _wide_range(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from _nodes(graph, *_WIDE)


def _residual_stream(graph: ir.Graph) -> Iterator[ir.Node]:
    """The additions and layer scales that lead to a norm."""
    norms = list(_layer_norms(graph))
    starts = [value for node in norms if node.op_type in _NORMS for value in node.inputs[:1]]
    yield from walk_back(starts, lambda node: node.op_type in ("Add", "Mul") and is_light(node))[0]


def _with_bias(linears: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Layers found by their last node, which may be the addition of a bias."""
    for node in linears:
        if is_linear(node):
            yield node
        elif is_bias(node):
            yield node
            yield from (maker for value in computed(node) if (maker := value.producer()) is not None)


def _decoder(graph: ir.Graph) -> Iterator[ir.Node]:
    """All that depends on a selection of queries, and the layer that scores them."""
    selections = [node for node in _nodes(graph, "TopK") if _scores_tokens(node)]
    for node in selections:
        yield from _with_bias(walk_back(node.inputs)[1])
    pending = [user for node in selections for value in node.outputs for user in value.consumers()]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node
            pending += [user for value in node.outputs for user in value.consumers()]


def _scores_tokens(top: ir.Node) -> bool:
    """Whether its indices are used: a selection, not the largest values of a distribution."""
    return bool(top.outputs[1].consumers()) if len(top.outputs) > 1 else False


def _heads(graph: ir.Graph) -> Iterator[ir.Node]:
    yield from _with_bias(walk_back(graph.outputs)[1])


def _first_layer(graph: ir.Graph) -> Iterator[ir.Node]:
    inputs = set(graph.inputs)
    for node in graph:
        if is_linear(node):
            inside, border = walk_back(computed(node))
            sources = {value for item in (node, *inside) for value in item.inputs if value in inputs}
            if sources and not border:
                yield node


FINDERS: Mapping[str, Callable[[ir.Graph], Iterator[ir.Node]]] = {
    "layer_norm": _layer_norms,
    "query_selection": _query_selection,
    "sampling_locations": _sampling_locations,
    "box_refinement": _box_refinement,
    "attention_scores": _attention_scores,
    "rope": _rope,
    "softmax": _softmaxes,
    "outputs": _outputs,
    "reductions": _reductions,
    "wide_range": _wide_range,
    "residual_stream": _residual_stream,
    "decoder": _decoder,
    "heads": _heads,
    "first_layer": _first_layer,
}


def _keep_coordinates(graph: ir.Graph, marks: Marks) -> None:
    """What is computed from coordinates alone (fractions and weights of a sample) stays with them."""
    for node in graph:
        values = computed(node)
        if node in marks or not values or not is_light(node) or not is_float(node.outputs[0]):
            continue
        kinds = [marks.get(maker) if (maker := value.producer()) is not None else None for value in values]
        if all(kind in _COORDINATES for kind in kinds):
            marks[node] = str(kinds[0])


def _trim_movement(graph: ir.Graph, marks: Marks) -> None:
    """An island does not begin with mere rearrangement: the cast comes after it, unless its source is cast anyway."""
    for node in graph:
        if marks.get(node) is not None and node.op_type in MOVEMENT:
            values = computed(node)
            if values and not any(_stays(value, marks) for value in values):
                del marks[node]


def _stays(value: ir.Value, marks: Marks) -> bool:
    maker = value.producer()
    if maker is None or maker in marks:
        return True
    return any(user in marks and user.op_type not in MOVEMENT for user in value.consumers())
