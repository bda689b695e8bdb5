"""TensorRT 10, TensorRT 11 and TensorRT-RTX behind the engine protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from vtk.engines.base import Array, TensorSpec
from vtk.engines.cuda_driver import CudaDevice
from vtk.engines.feeds import check_feeds, static_shape
from vtk.errors import BackendError
from vtk.exporters.to_tensorrt_api import Kind, TensorRT, load
from vtk.exporters.to_tensorrt_log import Messages, make_logger

if TYPE_CHECKING:
    import torch

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


@dataclass(frozen=True)
class Loaded:
    """A deserialized engine, which several handles may run. TensorRT keeps pointers to its logger and its runtime."""

    api: TensorRT
    messages: Messages
    logger: Any
    runtime: Any
    engine: Any


def open_tensorrt(path: Path, *, kind: Kind, device: str = "auto") -> TensorRTEngine:
    """Deserialize `path`, which must have been built by this version of the library for this GPU.

    Raises MissingDependencyError without the library, BackendError for another device than CUDA, without a GPU, or when
    the library refuses.
    """
    if device not in ("auto", "cuda"):
        raise BackendError(f"The backend {kind} has no device '{device}'.", hint="Devices: auto, cuda.")
    api = load(kind)
    cuda = CudaDevice()
    cuda.open()
    try:
        loaded = _deserialize(api, path)
    except BaseException:
        cuda.close()
        raise
    return TensorRTEngine(loaded, cuda)


class TensorRTEngine:
    """An execution context on one GPU, with a device buffer for each tensor and a stream of its own."""

    device = "cuda"

    def __init__(self, loaded: Loaded, cuda: CudaDevice) -> None:
        """Owns `cuda`, which is open. Raises BackendError where the GPU has no room or a tensor no NumPy type."""
        self.backend: str = loaded.api.kind
        self._loaded: Loaded | None = loaded
        self._cuda = cuda
        self._addresses: dict[str, int] = {}
        self._context: Any = None
        try:
            self._context = loaded.engine.create_execution_context()
            if self._context is None:
                _fail(loaded, "The engine cannot be given memory")
            self.inputs, self.outputs = _tensors(loaded)
            for spec in (*self.inputs, *self.outputs):
                self._bind(loaded, spec)
        except BaseException:
            self.close()
            raise

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        loaded = self._opened()
        check_feeds(feeds, self.inputs)
        self._cuda.make_current()
        sources = {spec.name: np.ascontiguousarray(feeds[spec.name]) for spec in self.inputs}
        for name, array in sources.items():
            self._cuda.upload(self._addresses[name], array)
        if not self._context.execute_async_v3(self._cuda.stream):
            _fail(loaded, "The engine cannot be started")
        results: dict[str, Array] = {spec.name: np.empty(spec.shape, spec.dtype) for spec in self.outputs}
        for name, array in results.items():
            self._cuda.download(array, self._addresses[name])
        self._cuda.synchronize()
        return results

    def enqueue(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Queue one run on torch's current stream over these device tensors, all inputs and outputs by name.

        Nothing is waited for, so it may be captured in a CUDA graph. They stay bound: do not mix it with `infer`.
        """
        import torch

        loaded = self._opened()
        for name, tensor in tensors.items():
            if not self._context.set_tensor_address(name, tensor.data_ptr()):
                _fail(loaded, f"The engine takes no memory for '{name}'")
        if not self._context.execute_async_v3(torch.cuda.current_stream().cuda_stream):
            _fail(loaded, "The engine cannot be started")

    def share(self) -> TensorRTEngine:
        """The same engine in a context, buffers and a stream of its own."""
        loaded, cuda = self._opened(), CudaDevice()
        cuda.open()
        return TensorRTEngine(loaded, cuda)

    def close(self) -> None:
        if self._loaded is None:
            return
        self._cuda.make_current()
        self._context = self._loaded = None  # the context before its engine
        for address in self._addresses.values():
            self._cuda.free(address)
        self._cuda.close()

    def _opened(self) -> Loaded:
        if self._loaded is None:
            raise BackendError("The engine is closed.")
        return self._loaded

    def _bind(self, loaded: Loaded, spec: TensorSpec) -> None:
        size = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
        self._addresses[spec.name] = self._cuda.allocate(size)
        if not self._context.set_tensor_address(spec.name, self._addresses[spec.name]):
            _fail(loaded, f"The engine takes no memory for '{spec.name}'")


def _deserialize(api: TensorRT, path: Path) -> Loaded:
    messages = Messages()
    logger = make_logger(api.module, messages)
    runtime = api.module.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    loaded = Loaded(api, messages, logger, runtime, engine)
    if engine is None:
        _fail(loaded, f"{api.title} cannot open {path}")
    return loaded


def _fail(loaded: Loaded, what: str) -> NoReturn:
    raise BackendError(f"{what}: {loaded.messages.summary('the library gave no reason')}.")


def _tensors(loaded: Loaded) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    engine, input_mode = loaded.engine, loaded.api.module.TensorIOMode.INPUT
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == input_mode]
    outputs = [name for name in names if name not in inputs]
    return tuple(_spec(loaded, name) for name in inputs), tuple(_spec(loaded, name) for name in outputs)


def _spec(loaded: Loaded, name: str) -> TensorSpec:
    types = {int(value): text for text, value in loaded.api.module.DataType.__members__.items()}
    dtype = types[int(loaded.engine.get_tensor_dtype(name))]
    if dtype not in _DTYPES:
        raise BackendError(f"Tensor '{name}' of the engine is {dtype}, which NumPy has not.", hint="Export it again.")
    return TensorSpec(name, static_shape(name, list(loaded.engine.get_tensor_shape(name))), _DTYPES[dtype])
