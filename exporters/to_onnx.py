"""From a loaded model to static ONNX graphs: one per batch size, one shared weights file, same bytes every time.

A model in parts becomes the same for each part. No copy of the weights is made: a tensor is written from where it is.
"""

from __future__ import annotations

import hashlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from torch import nn

from vtk.errors import ExportError, UsageError
from vtk.exporters.explicit_attention import write_out_attention
from vtk.exporters.family import TensorShape
from vtk.exporters.graph_forms import DEFAULT_FORMS, GraphForms
from vtk.exporters.lint import LintReport, lint
from vtk.exporters.load import LoadedModel
from vtk.exporters.onnx_fold import fold_constants
from vtk.exporters.onnx_grid_sample import replace_grid_samples
from vtk.exporters.onnx_opset import EXPORTER_OPSET, to_opset_17
from vtk.exporters.onnx_rules import MIN_OPSET
from vtk.exporters.onnx_weights import WeightsFile

INPUT_NAME = "images"
WHOLE = "model"  # the part of a model that is one graph
DEFAULT_OPSET = 18
MAX_OPSET = 23
REFERENCE_SEED = 0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class GraphFile:
    """One written graph. Its large tensors are in `weights`, beside it; None when all are small enough to be inline.

    part: of which of the model's parts; `model` where it is one graph.
    """

    path: Path
    batch: int
    opset: int
    sha256: str
    num_nodes: int
    lint: LintReport
    weights: Path | None
    part: str = WHOLE


@dataclass(frozen=True)
class _Job:
    """A module to trace, for several batch sizes into one weights file. inputs: with a batch of 1."""

    part: str
    module: nn.Module
    inputs: tuple[TensorShape, ...]
    outputs: tuple[str, ...]
    batches: tuple[int, ...]


def export_graphs(
    loaded: LoadedModel,
    batches: Sequence[int],
    out_dir: Path,
    *,
    opset: int = DEFAULT_OPSET,
    forms: GraphForms = DEFAULT_FORMS,
    progress: Progress,
) -> tuple[GraphFile, ...]:
    """Write `model.b<N>.onnx` for each batch size and `model.weights` into `out_dir`, ascending by batch size.

    Input `images` (N, 3, *input_hw) float32, outputs named as in `spec.outputs`, all shapes static. With `spec.parts`:
    `<part>.b<N>.onnx` and `<part>.weights` for each, N being 1 for those that are not batched. Raises UsageError for a
    batch size or opset that cannot be used, ExportError where the reference is not fit to be exported or the exporter
    fails, LintError where the graph breaks a rule that engines need.
    """
    _check_request(batches, opset)
    if loaded.spec.parts:
        _check_modules(loaded.wrapper)  # whether it repeats itself is seen when it makes the golden data
    else:
        check_reference(loaded)
    out_dir.mkdir(parents=True, exist_ok=True)
    files: list[GraphFile] = []
    for job in _jobs(loaded, sorted(set(batches))):
        with WeightsFile(out_dir / f"{job.part}.weights") as weights:
            files += [_export_one(loaded, job, batch, weights, opset, forms, progress) for batch in job.batches]
    return tuple(files)


def _jobs(loaded: LoadedModel, batches: Sequence[int]) -> tuple[_Job, ...]:
    spec = loaded.spec
    if not spec.parts:
        images = TensorShape(INPUT_NAME, (1, 3, *spec.input_hw))
        names = tuple(output.name for output in spec.outputs)
        return (_Job(WHOLE, loaded.wrapper, (images,), names, tuple(batches)),)
    return tuple(
        _Job(
            part.name,
            loaded.part(part.name),
            part.inputs,
            tuple(output.name for output in part.outputs),
            tuple(batches) if part.batched else (1,),
        )
        for part in spec.parts
    )


def _check_request(batches: Sequence[int], opset: int) -> None:
    if not batches or not all(type(batch) is int and batch > 0 for batch in batches):
        raise UsageError(f"Batch sizes must be integers above 0, got {list(batches)}.", hint="For example: --batch 1,8")
    check_opset(opset)


def check_opset(opset: int) -> None:
    """Raise UsageError for an opset that cannot be used."""
    if opset < MIN_OPSET:
        raise UsageError(
            f"Opset {opset} is too old: it splits LayerNormalization into Pow and Reduce, which overflow in half "
            "precision.",
            hint=f"Use --opset {MIN_OPSET} to {MAX_OPSET} (default {DEFAULT_OPSET}).",
        )
    if opset > MAX_OPSET:
        raise UsageError(
            f"Opset {opset} is newer than what the engines read.",
            hint=f"Use --opset {MIN_OPSET} to {MAX_OPSET} (default {DEFAULT_OPSET}).",
        )


def check_reference(loaded: LoadedModel) -> None:
    """The torch model must be in eval mode, float32 and repeat itself bit for bit before anything is compared with it.

    Raises ExportError otherwise, or when its outputs are not the ones that the family declares.
    """
    _check_modules(loaded.wrapper)
    images = example_images(loaded, batch=1)
    first, second = _run(loaded, images), _run(loaded, images)
    for spec, one, other in zip(loaded.spec.outputs, first, second, strict=True):
        if one.dtype != torch.float32 or one.shape[0] != 1:
            raise ExportError(
                f"Output '{spec.name}' of the {loaded.spec.family} model must be float32 with the batch first, "
                f"got {one.dtype} {tuple(one.shape)} for a batch of 1."
            )
        if one.isnan().any():
            raise ExportError(f"Output '{spec.name}' of the {loaded.spec.family} model holds NaN.")
        if not torch.equal(one, other):
            raise ExportError(
                f"Output '{spec.name}' of the {loaded.spec.family} model differs between two runs on the same input "
                f"by up to {(one - other).abs().max().item():.3g}: an export could not be compared with it.",
                hint="Some part of it is random or keeps state.",
            )


def example_images(loaded: LoadedModel, *, batch: int) -> torch.Tensor:
    """Seeded noise in 0..1, (batch, 3, *input_hw) float32."""
    generator = torch.Generator().manual_seed(REFERENCE_SEED)
    return torch.rand(batch, 3, *loaded.spec.input_hw, generator=generator)


def _run(loaded: LoadedModel, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():  # not inference_mode: a table that a module caches on its first call must stay traceable
        outputs = tuple(loaded.wrapper(images))
    names = [spec.name for spec in loaded.spec.outputs]
    if len(outputs) != len(names):
        raise ExportError(f"The {loaded.spec.family} wrapper returned {len(outputs)} tensors, expected {names}.")
    return outputs


def _check_modules(wrapper: nn.Module) -> None:
    training = [name or "(root)" for name, module in wrapper.named_modules() if module.training]
    if training:
        raise ExportError(f"These modules are in training mode: {', '.join(training[:5])}.", hint="Call .eval() first.")
    tensors = (*wrapper.named_parameters(), *wrapper.named_buffers())
    half = [name for name, tensor in tensors if tensor.dtype in (torch.float16, torch.bfloat16)]
    if half:
        raise ExportError(
            f"The reference must be float32, but these tensors are in half precision: {', '.join(half[:5])}.",
            hint="Call .float() first; precision is chosen after the export.",
        )


def _export_one(
    loaded: LoadedModel,
    job: _Job,
    batch: int,
    weights: WeightsFile,
    opset: int,
    forms: GraphForms,
    progress: Progress,
) -> GraphFile:
    started = time.perf_counter()
    what = f"batch {batch}" if job.part == WHOLE else f"{job.part}, batch {batch}"
    progress(f"tracing {what}")
    model = _trace(loaded.spec.family, job, batch, max(opset, EXPORTER_OPSET), forms)
    _check_modules(loaded.wrapper)
    progress(f"folding and checking {what}")
    fold_constants(model)
    if forms.deform == "gather":
        replace_grid_samples(model)
    if opset < EXPORTER_OPSET:
        to_opset_17(model)
    _finish(model)
    weights.move_out(model)
    path = weights.path.with_name(f"{job.part}.b{batch}.onnx")
    file = write_graph(ir.to_proto(model), path, batch=batch, opset=opset, weights=weights.path, part=job.part)
    progress(f"wrote {file.path.name}: {file.num_nodes} nodes in {time.perf_counter() - started:.1f} s")
    return file


def _trace(family: str, job: _Job, batch: int, opset: int, forms: GraphForms) -> ir.Model:
    try:
        example = tuple(_zeros(shape, batch) for shape in job.inputs)
        with torch.no_grad(), _quiet():
            program = torch.export.export(job.module, example, strict=False)
            if forms.attn == "explicit":
                program = write_out_attention(program)
            exported = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=[shape.name for shape in job.inputs],
                output_names=list(job.outputs),
                verbose=False,
            )
    except Exception as error:  # whatever fails inside the exporter is a graph that could not be made
        cause = error.__cause__ or error
        reason = (str(cause).strip() or "no message").splitlines()[0]
        raise ExportError(
            f"The {family} {job.part} cannot be exported at batch {batch}: {type(cause).__name__}: {reason}"
        ) from error
    assert exported is not None
    return exported.model


def _zeros(shape: TensorShape, batch: int) -> torch.Tensor:
    return torch.zeros(batch, *shape.shape[1:], dtype=getattr(torch, shape.dtype))


def write_graph(
    proto: onnx.ModelProto, path: Path, *, batch: int, opset: int, weights: Path, part: str = WHOLE
) -> GraphFile:
    """Lint, write and check one graph, whose external tensors are in `weights` beside it.

    Raises LintError, and ExportError where the checker refuses the graph.
    """
    report = lint(proto)
    report.raise_if_failed()
    data: bytes = proto.SerializeToString(deterministic=True)
    path.write_bytes(data)
    try:
        onnx.checker.check_model(str(path))
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise ExportError(
            f"The graph is not valid ONNX at opset {opset}: {reason}", hint=f"Try --opset {DEFAULT_OPSET}."
        ) from error
    external = any(tensor.external_data for tensor in proto.graph.initializer)
    digest = hashlib.sha256(data).hexdigest()
    return GraphFile(path, batch, opset, digest, len(proto.graph.node), report, weights if external else None, part)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's own warnings and log lines off the screen: lint and verify judge what it made."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _finish(model: ir.Model) -> None:
    """Drop what is no longer used, and the stack traces and file names of this machine."""
    passes.RemoveUnusedNodesPass()(model)
    passes.ClearMetadataAndDocStringPass()(model)
    values = [*model.graph.inputs, *model.graph.initializers.values(), *model.graph.outputs]
    for value in (*values, *(output for node in model.graph for output in node.outputs)):
        value.metadata_props.clear()
        value.doc_string = None
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.graph.name = "vtk"
    model.producer_name, model.producer_version = "vtk", None
