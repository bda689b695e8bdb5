"""From an ONNX graph to a TensorRT engine: one path for TensorRT 10, 11 and TensorRT-RTX, always strongly typed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtk.errors import BackendError, ExportError
from vtk.exporters.to_tensorrt_api import TensorRT
from vtk.exporters.to_tensorrt_log import Messages, make_logger, parser_errors

# Part of the engine's cache key: what is asked of the builder beside the graph. TF32 would round the inputs of float32
# products to 10 bits, and the float32 islands of a half graph are there to be exact.
FLAGS: Mapping[str, str] = {"strongly_typed": "1", "tf32": "0"}
HALF_TYPES = ("HALF", "BF16")
# Layers that only move, name or convert numbers compute nothing, so their type says nothing about precision.
_NO_ARITHMETIC = frozenset(
    {"CONSTANT", "CAST", "SHUFFLE", "IDENTITY", "SHAPE", "SLICE", "CONCATENATION", "SQUEEZE", "UNSQUEEZE", "GATHER"}
)


# Where the time goes: convolutions and matrix products.
_PRODUCTS = frozenset({"CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM"})


@dataclass(frozen=True)
class LayerTypes:
    """How many computing layers of a strongly typed network give each element type (`HALF`, `FLOAT`, …).

    products: the convolutions and matrix products among them. quantized: element types that its Q/DQ layers quantize
    to.
    """

    counts: Mapping[str, int]
    products: Mapping[str, int]
    quantized: frozenset[str]

    @property
    def half_share(self) -> float:
        """Of the floating-point layers, the part in half precision, 0..1."""
        return _share(self.counts, *HALF_TYPES)


def _share(counts: Mapping[str, int], *names: str) -> float:
    floats = sum(counts.get(name, 0) for name in (*HALF_TYPES, "FLOAT"))
    return sum(counts.get(name, 0) for name in names) / floats if floats else 0.0


@dataclass(frozen=True)
class BuiltEngine:
    """What was built: layer types as in the network, seconds of parsing and building, the timing cache to keep."""

    layers: LayerTypes
    num_layers: int
    seconds: float
    num_bytes: int
    timing_cache: bytes


def build_engine(
    api: TensorRT, graph: Path, out: Path, *, targets: Sequence[str], precision: str, timing_cache: bytes = b""
) -> BuiltEngine:
    """Write the serialized engine of `graph` to `out`.

    precision: what the graph was made to be and the engine will be called; a network that is something else is refused
    (case V13). Raises ExportError with the nodes and reasons that the library gave, BackendError where it does not
    start.
    """
    started = time.perf_counter()
    messages = Messages()
    builder = _start(api, messages)
    network = builder.create_network(api.network_flags())
    # The network may point at weights that the parser holds: it lives until the engine is built.
    parser = api.module.OnnxParser(network, make_logger(api.module, messages))
    _parse(api, parser, network, graph, messages)
    layers = layer_types(api, network)
    check_precision(layers, precision, graph.name)
    config = _configure(api, builder, targets, timing_cache)
    plan = _build(api, builder, network, config, messages, f"{graph.name} for {', '.join(targets)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(plan)
    seconds = time.perf_counter() - started
    return BuiltEngine(layers, network.num_layers, seconds, plan.nbytes, _timings(api, config))


def layer_types(api: TensorRT, network: Any) -> LayerTypes:
    """Count the types that the network states; strongly typed, they are the types that are built."""
    names = {int(kind): name for name, kind in api.module.DataType.__members__.items()}
    skipped = {int(kind) for name, kind in api.module.LayerType.__members__.items() if name in _NO_ARITHMETIC}
    quantize = int(api.module.LayerType.QUANTIZE)
    heavy = {int(kind) for name, kind in api.module.LayerType.__members__.items() if name in _PRODUCTS}
    counts: Counter[str] = Counter()
    products: Counter[str] = Counter()
    quantized: set[str] = set()
    for layer in map(network.get_layer, range(network.num_layers)):
        kind, output = int(layer.type), layer.get_output(0)
        if output is None or kind in skipped:
            continue
        name = names[int(output.dtype)]
        if kind == quantize:
            quantized.add(name)
        else:
            counts[name] += 1
            products[name] += kind in heavy
    return LayerTypes(dict(counts), dict(products), frozenset(quantized))


def check_precision(layers: LayerTypes, precision: str, graph: str) -> None:
    """Raise ExportError unless a network with these layers may be called `precision`.

    Half precision means that most products are in it; what stays float32 beside them are many cheap layers.
    """
    half = layers.half_share
    share = {name: _share(layers.products, name) for name in HALF_TYPES}
    holds = {
        "fp32": half == 0 and not layers.quantized,
        "fp16": share["HALF"] > 0.5,
        "bf16": share["BF16"] > 0.5,
        "mixed": half > 0,
        "int8": "INT8" in layers.quantized,
        "fp8": "FP8" in layers.quantized,
    }
    if not holds.get(precision, False):
        products = _share(layers.products, *HALF_TYPES)
        quantized = ", ".join(sorted(layers.quantized)) or "nothing"
        raise ExportError(
            f"{graph} is to be built as {precision}, but {half:.0%} of its layers and {products:.0%} of its products "
            f"are in half precision, and {quantized} is quantized: the engine would not be what it is called.",
            hint=f"TensorRT takes the precision from the graph: export with --precision {precision}.",
        )


def _start(api: TensorRT, messages: Messages) -> Any:
    try:
        return api.module.Builder(make_logger(api.module, messages))
    except (TypeError, RuntimeError) as error:  # pybind11: "factory function returned nullptr"
        raise BackendError(
            f"{api.title} cannot start a builder here: {messages.summary(str(error).splitlines()[0])}",
            hint="It needs an NVIDIA GPU and its driver; TensorRT-RTX builds without one, with --target.",
        ) from error


def _parse(api: TensorRT, parser: Any, network: Any, graph: Path, messages: Messages) -> None:
    if not parser.parse_from_file(str(graph)):
        messages.errors[:0] = parser_errors(parser)
        raise ExportError(f"{api.title} cannot read {graph.name}: {messages.summary('it gave no reason')}.")
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        if any(size < 0 for size in tensor.shape):
            raise ExportError(
                f"Input '{tensor.name}' of {graph.name} has the dynamic shape {tuple(tensor.shape)}, for which an "
                "engine needs an optimization profile.",
                hint="Export static graphs: one batch size each, --batch 1,8.",
            )


def _configure(api: TensorRT, builder: Any, targets: Sequence[str], timing_cache: bytes) -> Any:
    config = builder.create_builder_config()
    config.clear_flag(api.module.BuilderFlag.TF32)
    api.set_targets(config, targets)
    if api.has_timing_cache:
        # what another version or GPU has measured is refused, and the builder measures anew
        config.set_timing_cache(config.create_timing_cache(timing_cache), ignore_mismatch=False)
    return config


def _timings(api: TensorRT, config: Any) -> bytes:
    cache = config.get_timing_cache() if api.has_timing_cache else None
    return b"" if cache is None else bytes(cache.serialize())


def _build(api: TensorRT, builder: Any, network: Any, config: Any, messages: Messages, what: str) -> memoryview:
    try:
        plan = builder.build_serialized_network(network, config)
    except RuntimeError as error:
        messages.errors.append(str(error).splitlines()[0])
        plan = None
    if plan is None:
        raise ExportError(f"{api.title} cannot build {what}: {messages.summary('it gave no reason')}.")
    return memoryview(plan)
