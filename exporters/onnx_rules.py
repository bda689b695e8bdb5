"""The rules of the graph lint. Each takes a view and yields a sentence for every breach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from onnx import TensorProto

from vtk.exporters.onnx_view import GraphView, describe

MIN_OPSET = 17
MAX_RANK = 8  # TensorRT: nvinfer1::Dims::MAX_DIMS
MAX_TOPK = 3840  # TensorRT: ITopKLayer
STANDARD_DOMAINS = ("", "ai.onnx")
ORT_DOMAIN = "com.microsoft"

_DATA_SHAPE = "the size of its result depends on the data, so no engine can plan memory for it"
_CONTROL = "it is control flow, which a static graph must not have; TensorRT rejects or splits it"
_SEQUENCE = "it handles sequences, which TensorRT does not have"
_RANDOM = "its result is random, so no two runs agree"
RANDOM_OPS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
FORBIDDEN_OPS: Mapping[str, str] = {
    **dict.fromkeys(("If", "Loop", "Scan"), _CONTROL),
    **dict.fromkeys(("NonZero", "Unique", "Compress", "NonMaxSuppression"), _DATA_SHAPE),
    "Range": "at a fixed input size it is a constant and must be folded; TensorRT plugins of RoPE fail on it",
    **dict.fromkeys(
        (
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
            "ConcatFromSequence",
        ),
        _SEQUENCE,
    ),
    **dict.fromkeys(sorted(RANDOM_OPS), _RANDOM),
}
FORBIDDEN_DTYPES: Mapping[int, str] = {
    TensorProto.DOUBLE: "TensorRT has no float64",
    TensorProto.COMPLEX64: "no engine computes with complex numbers; write sine and cosine apart",
    TensorProto.COMPLEX128: "no engine computes with complex numbers; write sine and cosine apart",
    TensorProto.STRING: "engines do not take strings",
}
RISKY_OPS: Mapping[str, str] = {
    "GridSample": "TensorRT 10.14 and 11.1 miscompile deformable attention built on it: boxes are lost or moved, and "
    "equal rows of a batch differ. Verify the engine on pictures at every batch size",
    "Einsum": "TensorRT takes at most two inputs and no repeated or ellipsis index, and does not fuse it",
    "RoiAlign": "engines differ in half-pixel offset and in how they sample at the border",
    "ScatterElements": "where two indices are equal, the order of the writes is not defined",
    "ScatterND": "where two indices are equal, the order of the writes is not defined",
    "IsNaN": "engines that assume finite numbers may drop it; it mostly comes from a softmax over a fully masked row",
    "Tile": "TensorRT 10.3 miscompiles rotary embeddings built on it",
}

Rule = Callable[[GraphView], Iterator[str]]


def opset_rule(graph: GraphView) -> Iterator[str]:
    """Old opsets have no LayerNormalization."""
    if graph.opset is None or graph.opset < MIN_OPSET:
        yield (
            f"Opset {graph.opset} is below {MIN_OPSET}: LayerNormalization is split into Pow and Reduce there, "
            "which overflow in half precision."
        )


def domain_rule(graph: GraphView) -> Iterator[str]:
    """Operators that need a plugin or another runtime."""
    nodes = [node for node in graph.nodes if node.domain not in (*STANDARD_DOMAINS, ORT_DOMAIN)]
    for name, count in Counter(f"{node.domain}::{node.op_type}" for node in nodes).items():
        yield f"{name} ×{count} is not an ONNX operator: no engine runs it without a plugin."


def forbidden_op_rule(graph: GraphView) -> Iterator[str]:
    """Operators that a static graph must not contain."""
    for op_type, reason in FORBIDDEN_OPS.items():
        nodes = [node for node in graph.nodes if node.op_type == op_type]
        if nodes:
            yield f"{op_type} ×{len(nodes)} (first: {describe(nodes[0])}): {reason}."


def static_shape_rule(graph: GraphView) -> Iterator[str]:
    """Every dimension is a number. Of a chain of unknown shapes only the first is named, unless a rule has its node."""
    for kind, values in (("Input", graph.graph.input), ("Output", graph.graph.output)):
        for value in values:
            if not graph.type_of(value.name).is_static:
                yield f"{kind} '{value.name}' has no fixed shape: {graph.type_of(value.name)}."
    ends = {value.name for value in graph.graph.output}
    for node in graph.nodes:
        is_plain = node.domain in STANDARD_DOMAINS and node.op_type not in FORBIDDEN_OPS
        if is_plain and all(graph.type_of(name).is_static for name in node.input if name):
            for name in node.output:
                if name and name not in ends and not graph.type_of(name).is_static:
                    yield f"Value '{name}' of {describe(node)} has no fixed shape: {graph.type_of(name)}."


def dtype_rule(graph: GraphView) -> Iterator[str]:
    """Element types that engines lack."""
    for name, info in graph.types.items():
        if info.dtype in FORBIDDEN_DTYPES:
            yield f"'{name}' ({graph.origin(name)}) is {info}: {FORBIDDEN_DTYPES[info.dtype]}."


def rank_rule(graph: GraphView) -> Iterator[str]:
    """TensorRT's limit on dimensions."""
    for name, info in graph.types.items():
        if info.shape is not None and len(info.shape) > MAX_RANK:
            yield f"'{name}' ({graph.origin(name)}) has {len(info.shape)} dimensions; TensorRT takes {MAX_RANK}."


def topk_rule(graph: GraphView) -> Iterator[str]:
    """TensorRT's limit on K."""
    for node in graph.nodes:
        if node.op_type == "TopK":
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), -1)
            shape = graph.type_of(node.output[0]).shape
            k = shape[axis] if shape else None
            if k is not None and k > MAX_TOPK:
                yield f"{describe(node)} takes the {k} largest; TensorRT takes at most {MAX_TOPK}."


def unique_name_rule(graph: GraphView) -> Iterator[str]:
    """A name stands for one value, and for one node."""
    made = [name for node in graph.nodes for name in node.output if name]
    values = Counter(
        [*made, *(value.name for value in graph.graph.input), *(tensor.name for tensor in graph.graph.initializer)]
    )
    nodes = Counter(node.name for node in graph.nodes if node.name)
    for kind, names in (("Value", values), ("Node", nodes)):
        for name, count in names.items():
            if count > 1:
                yield f"{kind} name '{name}' is used {count} times."


def dangling_rule(graph: GraphView) -> Iterator[str]:
    """Every value that is used is made before, and everything that is made or stored is used."""
    stored = [tensor.name for tensor in graph.graph.initializer]
    known = {*stored, *(value.name for value in graph.graph.input)}
    used = {value.name for value in graph.graph.output}
    for node in graph.nodes:
        for name in node.input:
            if name and name not in known:
                yield f"{describe(node)} uses '{name}', which nothing before it makes."
        known.update(node.output)
        used.update(node.input)
    for value in graph.graph.output:
        if value.name not in known:
            yield f"Output '{value.name}' is made by no node."
    for name in stored:
        if name not in used:
            yield f"Initializer '{name}' is not used."
    for node in graph.nodes:
        if not used.intersection(node.output):
            yield f"No one uses the result of {describe(node)}."


def risky_op_rule(graph: GraphView) -> Iterator[str]:
    """Operators that engines are known to get wrong."""
    counts = Counter(node.op_type for node in graph.nodes)
    for op_type, reason in RISKY_OPS.items():
        if counts[op_type]:
            yield f"{op_type} ×{counts[op_type]}: {reason}."


def bfloat16_rule(graph: GraphView) -> Iterator[str]:
    """bfloat16 is not everywhere."""
    count = sum(info.dtype == TensorProto.BFLOAT16 for info in graph.types.values())
    if count:
        yield f"bfloat16 ×{count} values: needs a GPU of compute capability 8.0; most CPU kernels do not have it."


def ort_domain_rule(graph: GraphView) -> Iterator[str]:
    """Operators of one runtime."""
    counts = Counter(node.op_type for node in graph.nodes if node.domain == ORT_DOMAIN)
    for op_type, count in counts.items():
        yield f"{ORT_DOMAIN}::{op_type} ×{count}: only ONNX Runtime runs it."


ERROR_RULES: Mapping[str, Rule] = {
    "opset": opset_rule,
    "domain": domain_rule,
    "forbidden-op": forbidden_op_rule,
    "static-shape": static_shape_rule,
    "dtype": dtype_rule,
    "rank": rank_rule,
    "topk": topk_rule,
    "unique-name": unique_name_rule,
    "dangling": dangling_rule,
}
WARNING_RULES: Mapping[str, Rule] = {
    "risky-op": risky_op_rule,
    "bfloat16": bfloat16_rule,
    "ort-domain": ort_domain_rule,
}
