"""ONNX Runtime behind the engine protocol."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from vtk.engines.base import Array, TensorSpec
from vtk.engines.feeds import check_feeds, static_shape
from vtk.errors import BackendError, MissingDependencyError

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ERRORS_ONLY = 3
_NO_KERNEL = (
    "It lacks an operator in the precision of this graph, as its CPU kernels do for bfloat16. Build an engine for a "
    "GPU, pass --backend openvino, which computes such graphs in float32, or export with --precision fp16 or mixed."
)


class OrtEngine:
    """An ONNX file in an InferenceSession; `device` is what the session says it uses once it is open."""

    backend = "ort"

    def __init__(self, path: Path, *, device: str = "auto", threads: int | None = None) -> None:
        """Open `path` on `device` (auto, cpu or cuda); auto means CUDA where this wheel has it and it works.

        Raises MissingDependencyError without onnxruntime, BackendError when the file does not open, the device is not
        the one that was asked for, or a shape is not static.
        """
        runtime = _import()
        self._session: Any = _open(runtime, path, device, threads)
        self.device = _device_in_use(self._session)
        if device not in ("auto", self.device):
            raise BackendError(
                f"ONNX Runtime was asked for {device} and uses {self.device}.",
                hint="Check the CUDA libraries of this machine (their load errors are above), or pass --device cpu.",
            )
        self.inputs = _specs(self._session.get_inputs())
        self.outputs = _specs(self._session.get_outputs())

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._session is None:
            raise BackendError("The engine is closed.")
        check_feeds(feeds, self.inputs)
        names = [spec.name for spec in self.outputs]
        return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))

    def share(self) -> OrtEngine:
        """The same session: its `run` may be called from several threads."""
        return copy(self)

    def close(self) -> None:
        self._session = None


def _import() -> Any:
    # Official wheels keep a log of their use below ~/.cache/Microsoft and send it; this must be set before the import.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError("onnxruntime", needed_for="The backend ort", extra="cpu") from None
    return onnxruntime


def _open(runtime: Any, path: Path, device: str, threads: int | None) -> Any:
    providers = _providers(runtime, device)
    options = runtime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = threads or 0
    # Between two runs the cores belong to decoding and to language models, not to threads that wait in a loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return runtime.InferenceSession(str(path), options, providers=providers)
    # onnxruntime's own exceptions derive from Exception directly, one class per status code
    except Exception as error:
        hint = _NO_KERNEL if "NOT_IMPLEMENTED" in str(error) else None
        raise BackendError(f"ONNX Runtime cannot open {path}: {error}", hint=hint) from error


def _providers(runtime: Any, device: str) -> list[str]:
    available = runtime.get_available_providers()
    if device == "auto":
        return [_PROVIDERS[name] for name in ("cuda", "cpu") if _PROVIDERS[name] in available]
    if device not in _PROVIDERS:
        raise BackendError(f"ONNX Runtime has no device '{device}'.", hint="Devices: auto, cpu, cuda.")
    if _PROVIDERS[device] not in available:
        raise BackendError(
            f"--device {device} needs {_PROVIDERS[device]}, and this onnxruntime has only {', '.join(available)}.",
            hint="Run: pip uninstall onnxruntime && pip install 'vtk-deploy[gpu]', or pass --device cpu.",
        )
    return [_PROVIDERS[device], _PROVIDERS["cpu"]] if device != "cpu" else [_PROVIDERS["cpu"]]


def _device_in_use(session: Any) -> str:
    first = session.get_providers()[0]
    return next((name for name, provider in _PROVIDERS.items() if provider == first), str(first))


def _specs(nodes: Any) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(node.name, static_shape(node.name, node.shape), _dtype(node.type)) for node in nodes)


def _dtype(onnx_type: str) -> str:
    """`tensor(float)` as a NumPy name."""
    names = {"float": "float32", "double": "float64", "float16": "float16", "bool": "bool"}
    inner = onnx_type.removeprefix("tensor(").removesuffix(")")
    return str(np.dtype(names.get(inner, inner)))
