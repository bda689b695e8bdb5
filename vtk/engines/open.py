"""Which engine opens a file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from vtk.engines.base import Engine
from vtk.errors import MissingDependencyError, UsageError
from vtk.exporters.to_tensorrt_api import KINDS

# what opens ONNX files, by preference: the first that is installed is what `auto` means
PACKAGES = {"ort": "onnxruntime", "openvino": "openvino"}
BACKENDS = tuple(PACKAGES)
# all that `--backend` takes; the last ones open engine files that were built for one kind of GPU
ALL_BACKENDS = ("auto", *BACKENDS, *KINDS)


def open_engine(
    path: Path, *, backend: str = "auto", device: str = "auto", threads: int | None = None, lanes: int = 1
) -> Engine:
    """Open a file; read `.backend` and `.device` of the result for what was chosen.

    backend: ort or openvino for an ONNX file, auto for the first of these that is installed; tensorrt or tensorrt_rtx
    for an engine that this library built. A backend that is installed and fails is
    an error, never a reason to try the next. device: auto, cpu or cuda. threads: of one `infer`; None leaves
    it to the library. lanes: how many handles (`Engine.share`) will infer at the same time.
    Raises UsageError for another backend name, MissingDependencyError, BackendError.
    """
    chosen = _first_installed() if backend == "auto" else backend
    if chosen == "ort":
        from vtk.engines.ort import OrtEngine

        return OrtEngine(path, device=device, threads=threads)
    if chosen == "openvino":
        from vtk.engines.ov import OpenVinoEngine

        return OpenVinoEngine(path, device=device, threads=threads, lanes=lanes)
    if chosen in KINDS:
        from vtk.engines.tensorrt import open_tensorrt

        return open_tensorrt(path, kind=chosen, device=device)
    raise UsageError(f"Unknown backend '{backend}'.", hint=f"Backends: {', '.join(ALL_BACKENDS)}.")


def maybe_faster(backend: str, device: str) -> str | None:
    """Another installed backend that is often faster than the one which `auto` took, None where none is known.

    `auto` keeps to its order, since what a backend computes is verified for each of them apart.
    """
    return "openvino" if (backend, device) == ("ort", "cpu") and find_spec(PACKAGES["openvino"]) is not None else None


def _first_installed() -> str:
    for backend, package in PACKAGES.items():
        if find_spec(package) is not None:
            return backend
    raise MissingDependencyError("onnxruntime", needed_for="Running a bundle", extra="cpu")
