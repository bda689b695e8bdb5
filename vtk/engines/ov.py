"""OpenVINO behind the engine protocol."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from vtk.engines.base import Array, TensorSpec
from vtk.engines.feeds import check_feeds, static_shape
from vtk.errors import BackendError, MissingDependencyError

_DEVICES = {"auto": "CPU", "cpu": "CPU"}


class OpenVinoEngine:
    """An ONNX file compiled by OpenVINO for the CPU; `device` is what the compiled model says it executes on."""

    backend = "openvino"

    def __init__(self, path: Path, *, device: str = "auto", threads: int | None = None, lanes: int = 1) -> None:
        """Compile `path` in float32, whatever the CPU would prefer: a bundle states its precision.

        `lanes` requests run at the same time, each on `threads` threads.

        Raises MissingDependencyError without openvino, BackendError for another device than the CPU, a file that does
        not compile, or a shape that is not static.
        """
        if device not in _DEVICES:
            raise BackendError(f"The backend openvino has no device '{device}' here.", hint="Devices: auto, cpu.")
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if lanes > 1:
            config["NUM_STREAMS"] = lanes
        if threads is not None:
            config["INFERENCE_NUM_THREADS"] = threads * lanes
        self._compiled: Any = _compile(path, _DEVICES[device], config)
        self._request: Any = self._compiled.create_infer_request()
        self.device = "+".join(self._compiled.get_property("EXECUTION_DEVICES")).lower()
        self.inputs = _specs(self._compiled.inputs)
        self.outputs = _specs(self._compiled.outputs)

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._compiled is None:
            raise BackendError("The engine is closed.")
        check_feeds(feeds, self.inputs)
        self._request.infer(dict(feeds), share_inputs=True)
        # the request reuses its output memory on the next call
        return {spec.name: np.array(self._request.get_tensor(spec.name).data) for spec in self.outputs}

    def share(self) -> OpenVinoEngine:
        """Another request on the same compiled model."""
        if self._compiled is None:
            raise BackendError("The engine is closed.")
        shared = copy(self)
        shared._request = self._compiled.create_infer_request()
        return shared

    def close(self) -> None:
        self._request = None
        self._compiled = None


def _compile(path: Path, device: str, config: Mapping[str, Any]) -> Any:
    openvino = _import()
    try:
        core = openvino.Core()
        return core.compile_model(core.read_model(path), device, dict(config))
    except RuntimeError as error:
        raise BackendError(f"OpenVINO cannot open {path}: {error}") from error


def _import() -> Any:
    """The package without its telemetry, which reports every import to its vendor over the network.

    With `openvino_telemetry` out of reach, openvino takes the stub that it carries for this case.
    """
    telemetry = "openvino_telemetry"
    hidden = telemetry not in sys.modules
    if hidden:
        sys.modules[telemetry] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError:
        raise MissingDependencyError("openvino", needed_for="The backend openvino", extra="openvino") from None
    finally:
        if hidden:
            del sys.modules[telemetry]
    return openvino


def _specs(ports: Any) -> tuple[TensorSpec, ...]:
    return tuple(_spec(port) for port in ports)


def _spec(port: Any) -> TensorSpec:
    name = port.get_any_name()
    dims = [dim.get_length() if dim.is_static else None for dim in port.get_partial_shape()]
    return TensorSpec(name, static_shape(name, dims), np.dtype(port.get_element_type().to_dtype()).name)
