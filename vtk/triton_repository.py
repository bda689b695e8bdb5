"""A bundle as a model repository for NVIDIA Triton Inference Server: raw outputs, one model per graph.

Batch sizes are static, so every graph is a model of its own with `max_batch_size: 0` and the batch in its shapes.
Layout and fields: Triton's "Model Repository" and `model_config.proto`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from vtk.bundle import Artifact, Bundle, is_bundle
from vtk.errors import UsageError
from vtk.onnx_io import TensorShapes, read_io

VERSION = "1"
PARTIAL = ".partial"
ANOTHER = "Choose another --triton folder."
_CONFIG = "config.pbtxt"
_LABELS = "labels.txt"
_TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "int64": "TYPE_INT64",
    "int32": "TYPE_INT32",
    "int8": "TYPE_INT8",
    "uint8": "TYPE_UINT8",
    "bool": "TYPE_BOOL",
}


def write_repository(bundle: Bundle, folder: Path) -> list[str]:
    """Write a model for every graph of the bundle below `folder`; returns their names.

    A graph with an engine of classic TensorRT is served by it, chosen by the compute capability of the GPU; the others
    by ONNX Runtime (Triton has no backend for TensorRT-RTX). A model takes its name when it is whole. Raises UsageError
    for a model folder that is there, and as `check_repository` does.
    """
    check_repository(folder, bundle.root)
    graphs = [item for item in bundle.manifest.artifacts if item.backend == "onnx"]
    names = {graph.file: model_name(bundle, graph, graphs) for graph in graphs}
    if taken := [name for name in names.values() if (folder / name).exists()]:
        raise UsageError(
            f"{folder} already holds {', '.join(taken)}; the bundle {bundle.root} is complete.",
            hint="Write its models elsewhere: vtk build BUNDLE --no-build --triton DIR",
        )
    for graph in graphs:
        _write_model(bundle, graph, folder / names[graph.file])
    return list(names.values())


def check_repository(folder: Path, bundle: Path | None) -> None:
    """Raise UsageError unless `folder` is new or holds models only, and lies in no bundle.

    bundle: the one that its models are from, which may be still to come; None where its name is not known yet.
    """
    place = folder.resolve()
    for parent in (place, *place.parents):
        if is_bundle(parent) or (bundle is not None and parent == bundle.resolve()):
            where = "is" if parent == place else "lies in"
            raise UsageError(f"{folder} {where} a bundle, not a model repository.", hint=ANOTHER)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder.", hint=ANOTHER)
    foreign = [entry.name for entry in sorted(folder.iterdir()) if not _is_model(entry)]
    if foreign:
        listed = ", ".join(foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise UsageError(f"{folder} holds what is no Triton model ({listed}).", hint=ANOTHER)


def _is_model(entry: Path) -> bool:
    """Or what a killed process has left of one."""
    return (entry / _CONFIG).is_file() or entry.name.endswith(PARTIAL)


def model_name(bundle: Bundle, graph: Artifact, graphs: Sequence[Artifact]) -> str:
    """`<bundle>[_<part>]_b<batch>`, in letters that Triton and every file system take."""
    base = re.sub(r"[^A-Za-z0-9_.-]+", "-", bundle.root.resolve().name).strip("-.") or "model"
    parts = {item.part for item in graphs}
    part = f"_{graph.part}" if len(parts) > 1 else ""
    return f"{base}{part}_b{graph.batch}"


def _write_model(bundle: Bundle, graph: Artifact, folder: Path) -> None:
    """Beside its place, and moved there: Triton serves whatever it finds under the name of a model."""
    partial = folder.with_name(f".{folder.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _fill_model(bundle, graph, partial, folder.name)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill_model(bundle: Bundle, graph: Artifact, folder: Path, name: str) -> None:
    version = folder / VERSION
    version.mkdir(parents=True)
    engines = _engines(bundle, graph)
    if engines:
        for engine in engines:
            shutil.copyfile(bundle.path(engine.file), version / _plan_name(engine))
    else:
        _copy_graph(bundle, graph, version)
    shapes = read_io(bundle.path(graph.file))
    labels = [label.name for label in bundle.manifest.labels]
    scores = "logits" if bundle.manifest.task == "classify" and labels else None
    if labels:
        (folder / _LABELS).write_text("".join(f"{' '.join(name.split())}\n" for name in labels), encoding="utf-8")
    config = config_text(name, shapes, engines, scores)
    (folder / _CONFIG).write_text(config, encoding="utf-8")


def _engines(bundle: Bundle, graph: Artifact) -> list[Artifact]:
    key = (graph.part, graph.batch)
    return [item for item in bundle.manifest.artifacts if item.backend == "tensorrt" and (item.part, item.batch) == key]


def _plan_name(engine: Artifact) -> str:
    return f"model.{engine.target}.plan"


def _copy_graph(bundle: Bundle, graph: Artifact, version: Path) -> None:
    """`model.onnx`: a file, or where the tensors are beside it a folder that holds both."""
    location = read_io(bundle.path(graph.file)).weights
    if not location:
        shutil.copyfile(bundle.path(graph.file), version / "model.onnx")
        return
    folder = version / "model.onnx"
    folder.mkdir()
    shutil.copyfile(bundle.path(graph.file), folder / "model.onnx")
    for name in location:
        shutil.copyfile(bundle.path(name), folder / name)


def config_text(name: str, shapes: TensorShapes, engines: Sequence[Artifact], scores: str | None) -> str:
    """`config.pbtxt`: protobuf's text format of Triton's ModelConfig. scores: the output that `labels.txt` names."""
    lines = [
        f"name: {_text(name)}",
        f"platform: {_text('tensorrt_plan' if engines else 'onnxruntime_onnx')}",
        "max_batch_size: 0",
    ]
    for kind, tensors in (("input", shapes.inputs), ("output", shapes.outputs)):
        for tensor in tensors:
            dims = ", ".join(map(str, tensor.shape))
            label = f" label_filename: {_text(_LABELS)}" if kind == "output" and tensor.name == scores else ""
            lines.append(
                f"{kind} {{ name: {_text(tensor.name)} data_type: {_TYPES[tensor.dtype]} dims: [ {dims} ]{label} }}"
            )
    for engine in engines:
        capability = f"{engine.target[3:-1]}.{engine.target[-1]}"
        lines.append(f"cc_model_filenames {{ key: {_text(capability)} value: {_text(_plan_name(engine))} }}")
    lines.append("version_policy { all { } }")
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """A string of the text format, whose escapes are those of JSON for printable names."""
    return json.dumps(value, ensure_ascii=True)
