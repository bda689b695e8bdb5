"""The part of `vtk doctor` about TensorRT: a tiny engine is built, and run where there is a GPU for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vtk.doctor_finding import TINY_GRAPH, Finding
from vtk.engines.cuda_driver import gpu_target
from vtk.engines.tensorrt import open_tensorrt
from vtk.errors import VtkError
from vtk.exporters.to_tensorrt import build_engine
from vtk.exporters.to_tensorrt_api import (
    EXTRAS,
    KINDS,
    RTX_DEFAULT_TARGETS,
    RTX_TARGETS,
    TITLES,
    Kind,
    TensorRT,
    installed_version,
    load,
)

_WITHOUT_GPU = "sm_89"
_ENABLES = {
    "tensorrt": "engines for the GPU of this machine, data-center GPUs included (vtk export --trt)",
    "tensorrt_rtx": f"engines for {', '.join(RTX_TARGETS)}, built on any machine (vtk export --trt --target sm_89)",
}


def examine_engines() -> Iterator[Finding]:
    """A finding for each of the two libraries."""
    gpu = gpu_target()
    for kind in KINDS:
        yield _examine(kind, gpu)


def _examine(kind: Kind, gpu: str | None) -> Finding:
    title = TITLES[kind]
    if installed_version(kind) is None:
        fix = f"Run: pip install 'vtk-deploy[{EXTRAS[kind]}]' for {_ENABLES[kind]}."
        return Finding(title, "missing", "not installed", fix)
    try:
        api = load(kind)
    except VtkError as error:
        return Finding(title, "broken", error.message, error.hint or "")
    if kind == "tensorrt" and gpu is None:
        fix = "It builds and runs on a GPU only; TensorRT-RTX builds without one."
        return Finding(title, "missing", f"{api.version}, and no GPU to build on", fix)
    if kind == "tensorrt_rtx" and gpu is not None and gpu not in RTX_TARGETS:
        found = f"{api.version}, builds for {', '.join(RTX_DEFAULT_TARGETS)}; it cannot run on {gpu}"
        return Finding(title, "ok", found)
    return _try(api, gpu)


def _try(api: TensorRT, gpu: str | None) -> Finding:
    title = TITLES[api.kind]
    try:
        with tempfile.TemporaryDirectory() as folder:
            graph, plan = Path(folder) / "identity.onnx", Path(folder) / "identity.plan"
            graph.write_bytes(TINY_GRAPH)
            build_engine(api, graph, plan, targets=[gpu or _WITHOUT_GPU], precision="fp32")
            if gpu is None:
                return Finding(title, "ok", f"{api.version} builds engines; there is no GPU to run them on")
            engine = open_tensorrt(plan, kind=api.kind)
            engine.infer({"x": np.ones(1, np.float32)})
            engine.close()
    except VtkError as error:
        return Finding(title, "broken", f"{api.version}: {error.message.splitlines()[0]}", error.hint or "")
    return Finding(title, "ok", f"{api.version} builds an engine for {gpu} and runs it")
