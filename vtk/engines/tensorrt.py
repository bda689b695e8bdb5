"""TensorRT 10, TensorRT 11 and TensorRT-RTX behind the engine protocol."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vtk.engines.base import Array, TensorSpec
from vtk.engines.cuda_driver import CudaDevice
from vtk.engines.feeds import check_feeds, static_shape
from vtk.errors import BackendError
from vtk.exporters.to_tensorrt_api import Kind, TensorRT, load
from vtk.exporters.to_tensorrt_log import Messages, make_logger

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


class TensorRTEngine:
    """A serialized engine on one GPU, with a device buffer for each of its tensors and a stream of its own."""

    device = "cuda"

    def __init__(self, path: Path, *, kind: Kind, device: str = "auto", threads: int | None = None) -> None:
        """Deserialize `path`, which must have been built by this version of the library for this GPU.

        threads: taken for the sake of the other engines; the GPU has no use for it. Raises MissingDependencyError
        without the library, BackendError for another device than CUDA, without a GPU, or when the library refuses.
        """
        if device not in ("auto", "cuda"):
            raise BackendError(f"The backend {kind} has no device '{device}'.", hint="Devices: auto, cuda.")
        self.backend: str = kind
        api = load(kind)
        self._messages = Messages()
        self._cuda: CudaDevice | None = CudaDevice()
        self._cuda.open()
        self._addresses: dict[str, int] = {}
        try:
            self._logger = make_logger(api.module, self._messages)  # TensorRT keeps a pointer to it
            self._runtime: Any = api.module.Runtime(self._logger)
            self._engine: Any = self._runtime.deserialize_cuda_engine(path.read_bytes())
            self._context: Any = None if self._engine is None else self._engine.create_execution_context()
            if self._context is None:
                self._fail(f"{api.title} cannot open {path}")
            self.inputs, self.outputs = _tensors(api, self._engine)
            for spec in (*self.inputs, *self.outputs):
                self._bind(spec)
        except BaseException:
            self.close()
            raise

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._cuda is None:
            raise BackendError("The engine is closed.")
        check_feeds(feeds, self.inputs)
        self._cuda.make_current()
        sources = {spec.name: np.ascontiguousarray(feeds[spec.name]) for spec in self.inputs}
        for name, array in sources.items():
            self._cuda.upload(self._addresses[name], array)
        if not self._context.execute_async_v3(self._cuda.stream):
            self._fail("The engine cannot be started")
        results: dict[str, Array] = {spec.name: np.empty(spec.shape, spec.dtype) for spec in self.outputs}
        for name, array in results.items():
            self._cuda.download(array, self._addresses[name])
        self._cuda.synchronize()
        return results

    def close(self) -> None:
        if self._cuda is None:
            return
        cuda, self._cuda = self._cuda, None
        cuda.make_current()
        # the context before its engine, the engine before its runtime
        self._context = self._engine = self._runtime = None
        for address in self._addresses.values():
            cuda.free(address)
        cuda.close()

    def _bind(self, spec: TensorSpec) -> None:
        assert self._cuda is not None
        size = int(np.prod(spec.shape)) * np.dtype(spec.dtype).itemsize
        self._addresses[spec.name] = self._cuda.allocate(size)
        if not self._context.set_tensor_address(spec.name, self._addresses[spec.name]):
            self._fail(f"The engine takes no memory for '{spec.name}'")

    def _fail(self, what: str) -> NoReturn:
        raise BackendError(f"{what}: {self._messages.summary('it gave no reason')}.")


def _tensors(api: TensorRT, engine: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    is_input = {name: engine.get_tensor_mode(name) == api.module.TensorIOMode.INPUT for name in names}
    specs = {name: _spec(api, engine, name) for name in names}
    inputs = tuple(spec for name, spec in specs.items() if is_input[name])
    return inputs, tuple(spec for name, spec in specs.items() if not is_input[name])


def _spec(api: TensorRT, engine: Any, name: str) -> TensorSpec:
    types = {int(value): text for text, value in api.module.DataType.__members__.items()}
    dtype = types[int(engine.get_tensor_dtype(name))]
    if dtype not in _DTYPES:
        raise BackendError(f"Tensor '{name}' of the engine is {dtype}, which NumPy has not.", hint="Export it again.")
    return TensorSpec(name, static_shape(name, list(engine.get_tensor_shape(name))), _DTYPES[dtype])
