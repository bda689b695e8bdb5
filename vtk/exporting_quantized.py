"""The step of an export that quantizes graphs to 8 bits: ranges from the user's pictures, and a gate on the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from vtk.engines.open import open_engine
from vtk.errors import InputError, UsageError, VerifyError
from vtk.exporters.family import ModelSpec
from vtk.exporters.onnx_weights import WeightsFile
from vtk.exporters.precision import FP8_OPSET
from vtk.exporters.precision_files import moved, rewrite_graphs, write_like
from vtk.exporters.precision_quantize import FORMATS, observed, quantize_model, share_quantized
from vtk.exporters.precision_terms import QUANTIZED, Precision
from vtk.exporters.to_onnx import GraphFile
from vtk.exporting_precision import PreciseGraphs, PrecisionListener
from vtk.inputs import expand
from vtk.postprocess.api import postprocess
from vtk.postprocess.results import Classification, Embeddings, Result
from vtk.preprocess.apply import Preprocessed, preprocess
from vtk.preprocess.decode import decode
from vtk.verify_limits import FP32
from vtk.verify_outputs import cosine_distance
from vtk.verify_results import compare_found

MAX_PICTURES = 128
DEFAULT_MAX_DROP = 0.01
_MEASURES = {"detect": "F1 of detections", "embed": "cosine of embeddings", "classify": "agreement on the first class"}


@dataclass(frozen=True)
class Calibration:
    """pictures: a folder. max_drop: how much of the measure of the task may be lost on them, 0..1."""

    pictures: Path
    max_drop: float = DEFAULT_MAX_DROP


def check_calibration(precision: Precision, calibration: Calibration | None, *, opset: int | None) -> None:
    """Refuse, before any work, what would be refused after it.

    Raises UsageError unless 8-bit precision and calibration pictures are asked for together, at a fitting opset, and
    InputError for a folder without pictures.
    """
    quantized = precision in QUANTIZED
    if quantized and calibration is None:
        raise UsageError(
            f"--precision {precision} needs pictures to find the ranges of values and to measure what is lost.",
            hint="Add --calibrate DIR, with pictures like those of the application.",
        )
    if calibration is not None and not quantized:
        raise UsageError("--calibrate means nothing without --precision int8 or fp8.", hint="Leave out --calibrate.")
    if calibration is not None and not 0 <= calibration.max_drop <= 1:
        raise UsageError(f"--max-drop is a share in 0..1, got {calibration.max_drop}.")
    if precision == "fp8" and opset is not None and opset < FP8_OPSET:
        raise UsageError(f"Opset {opset} has no float8.", hint=f"Use --opset {FP8_OPSET} or newer, or leave it out.")
    if calibration is not None:
        _pictures(calibration.pictures)


def check_one_graph(precision: Precision, spec: ModelSpec) -> None:
    """Raises UsageError for 8 bits of a model in parts."""
    if precision in QUANTIZED and spec.parts:
        raise UsageError(f"--precision {precision} is for models of one graph.", hint="Use --precision fp16 or mixed.")


def put_quantized(
    graphs: Sequence[GraphFile],
    precision: Precision,
    spec: ModelSpec,
    calibration: Calibration,
    listener: PrecisionListener,
) -> PreciseGraphs:
    """Quantize the graphs in place, which `check_calibration` and `check_one_graph` have let pass.

    Raises VerifyError where more is lost than `max_drop`, InputError for pictures in which the source model finds
    nothing.
    """
    files = _pictures(calibration.pictures)
    listener.stage(f"calibrate {precision} on {len(files)} pictures of {calibration.pictures}")
    first = min(graphs, key=lambda graph: graph.batch)
    wanted = _results(first, spec, files)
    if not any(isinstance(item, (Embeddings, Classification)) or len(item) for item in wanted):
        raise InputError(
            f"The source model finds nothing in the {len(files)} pictures of {calibration.pictures}: what "
            f"{precision} loses cannot be measured.",
            hint="Pass pictures that show what it was trained to find.",
        )
    # Not once for all: the same value can have another name in the graph of another batch size.
    ranges = {graph.path.name: _ranges(graph, spec, files) for graph in graphs}
    made = _quantize(graphs, precision, ranges, listener)
    drop = _drop(wanted, _results(min(made.graphs, key=lambda graph: graph.batch), spec, files), spec)
    measure = _MEASURES[spec.task]
    listener.quantized(f"{measure}: {drop:.4f} lost on {len(files)} pictures, {calibration.max_drop:g} allowed")
    if not drop <= calibration.max_drop:
        raise VerifyError(
            f"{precision} loses {drop:.4f} of the {measure} on {len(files)} pictures of {calibration.pictures}; "
            f"{calibration.max_drop:g} is allowed.",
            hint="Nothing was written. Use --precision fp16 or mixed, or allow more with --max-drop.",
        )
    facts = {"calibration_pictures": str(len(files)), "drop": f"{drop:.4f}", "max_drop": f"{calibration.max_drop:g}"}
    return PreciseGraphs(
        precision, made.graphs, {name: {**known, **facts} for name, known in made.facts.items()}, made.twins
    )


def _pictures(folder: Path) -> list[Path]:
    """Up to `MAX_PICTURES`, spread evenly."""
    if not folder.is_dir():
        raise InputError(f"--calibrate {folder} is not a folder.")
    try:
        paths = [Path(item.path) for item in expand([str(folder)]).items]
    except InputError as error:
        raise InputError(f"--calibrate {folder}: {error.message}", hint=error.hint) from error
    count = min(MAX_PICTURES, len(paths))
    return [paths[index * len(paths) // count] for index in range(count)]


def _prepared(spec: ModelSpec, files: Sequence[Path]) -> Iterator[Preprocessed]:
    return (preprocess(decode(file), spec.recipe) for file in files)


def _results(graph: GraphFile, spec: ModelSpec, files: Sequence[Path]) -> list[Result]:
    engine = open_engine(graph.path, backend="ort", device="cpu")
    results = []
    for item in _prepared(spec, files):
        outputs = engine.infer({engine.inputs[0].name: np.stack([item.tensor] * graph.batch)})
        row = {name: array[0] for name, array in outputs.items()}
        results.append(postprocess(row, item.geometry, spec.post, grid_hw=spec.config.get("grid_hw")))
    engine.close()
    return results


def _ranges(graph: GraphFile, spec: ModelSpec, files: Sequence[Path]) -> dict[str, float]:
    """Largest magnitude over all pictures of each value that a quantized layer reads."""
    names = observed(ir.load(graph.path))
    proto = onnx.load(graph.path, load_external_data=False)
    known = {output.name for output in proto.graph.output}
    types = {value.name: value for value in (*proto.graph.value_info, *proto.graph.input)}
    proto.graph.output.extend(types[name] for name in names if name not in known)
    path = graph.path.with_name(f".{graph.path.stem}.observed.onnx")
    path.write_bytes(proto.SerializeToString())
    try:
        engine = open_engine(path, backend="ort", device="cpu")
        found = dict.fromkeys(names, 0.0)
        for tensor in _batches(spec, files, graph.batch):
            outputs = engine.infer({engine.inputs[0].name: tensor})
            found = {name: max(top, float(np.abs(outputs[name]).max())) for name, top in found.items()}
        engine.close()
        return found
    finally:
        path.unlink()


def _batches(spec: ModelSpec, files: Sequence[Path], size: int) -> Iterator[npt.NDArray[np.float32]]:
    """All pictures as tensors (size, 3, H, W); the last picture fills the last one up."""
    tensors = (item.tensor for item in _prepared(spec, files))
    while rows := list(islice(tensors, size)):
        yield np.stack([*rows, *[rows[-1]] * (size - len(rows))])


def _quantize(
    graphs: Sequence[GraphFile],
    precision: Precision,
    ranges: Mapping[str, Mapping[str, float]],
    listener: PrecisionListener,
) -> PreciseGraphs:
    """ranges: by file name of the graph, then by value."""
    facts: dict[str, dict[str, str]] = {}

    def rewrite(graph: GraphFile, weights: WeightsFile) -> GraphFile:
        listener.detail(f"quantizing {graph.path.name}")
        model = ir.load(graph.path)
        quantize_model(model, ranges[graph.path.name], FORMATS[precision])
        facts[graph.path.name] = {"quantized_parameters": f"{share_quantized(model):.3f}"}
        weights.move_out(model)
        return write_like(model, weights.path.with_name(graph.path.name), graph, weights)

    folder = graphs[0].path.parent
    made = tuple(moved(graph, folder) for graph in rewrite_graphs(graphs, rewrite))
    return PreciseGraphs(precision, made, facts)


def _drop(wanted: Sequence[Result], came: Sequence[Result], spec: ModelSpec) -> float:
    """What is lost of the measure of the task: 0 where nothing is."""
    if spec.task == "detect":
        return compare_found(wanted, came, spec.post, FP32)[0].measured
    pairs = list(zip(wanted, came, strict=True))
    if spec.task == "classify":
        return float(np.mean([_first_class(one) != _first_class(other) for one, other in pairs]))
    distances = [
        cosine_distance(one.pooled.astype(np.float64), other.pooled.astype(np.float64))
        for one, other in pairs
        if isinstance(one, Embeddings) and isinstance(other, Embeddings)
    ]
    return float(max(distances))


def _first_class(result: Result) -> int:
    assert isinstance(result, Classification)
    return int(result.class_ids[0])
