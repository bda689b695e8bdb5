"""A TensorRT that has exactly the names of a recorded API and computes with ONNX Runtime in the memory of a fake GPU.

The recorded names were read off the real bindings once; a name that a release lacks is an AttributeError here too.
"""

import ctypes
import json
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).parent
SURFACES = {"10": "10.16.1.11", "11": "11.4.0.106", "rtx": "rtx-1.7.1.116"}
DTYPES = {
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.BFLOAT16: "BF16",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.BOOL: "BOOL",
}
LAYERS = {"MatMul": "MATRIX_MULTIPLY", "Conv": "CONVOLUTION", "Cast": "CAST", "QuantizeLinear": "QUANTIZE"}


class Fake:
    """Base of every object: names beyond the recorded ones of `kind` do not exist, to read or to write."""

    kind = ""

    def __init__(self, module: Any) -> None:
        object.__setattr__(self, "names", frozenset(module.surface["classes"][self.kind]))
        object.__setattr__(self, "module", module)

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        known = name.startswith("_") or name in ("module", "names", "kind") or name in own.get("names", ())
        if not known:
            raise AttributeError(f"'{self.kind}' object has no attribute '{name}'")
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in self.names:
            raise AttributeError(f"'{self.kind}' object has no attribute '{name}'")
        object.__setattr__(self, name, value)


class Tensor(Fake):
    kind = "ITensor"

    def __init__(self, module: Any, name: str, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(module)
        self.name, self.shape, self.dtype = name, shape, module.DataType[dtype]


class Layer(Fake):
    kind = "ILayer"

    def __init__(self, module: Any, op_type: str, output: Tensor) -> None:
        super().__init__(module)
        self.type, self._output = module.LayerType[LAYERS.get(op_type, "ELEMENTWISE")], output

    def get_output(self, index: int) -> Tensor:
        return self._output


class Network(Fake):
    kind = "INetworkDefinition"

    def __init__(self, module: Any, flags: int) -> None:
        super().__init__(module)
        module.calls.append(("create_network", flags))
        self._layers: list[Layer] = []
        self._inputs: list[Tensor] = []
        self._path = ""

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    def get_layer(self, index: int) -> Layer:
        return self._layers[index]

    def get_input(self, index: int) -> Tensor:
        return self._inputs[index]


class ParserError(Fake):
    kind = "ParserError"

    def node_operator(self) -> str:
        return "Mystery"

    def node_name(self) -> str:
        return "node_7"

    def desc(self) -> str:
        return "Plugin not found,\n are the plugin name, version, and namespace correct?"


class Parser(Fake):
    kind = "OnnxParser"

    def __init__(self, module: Any, network: Network, logger: Any) -> None:
        super().__init__(module)
        self._network, self._errors = network, list[ParserError]()

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> ParserError:
        return self._errors[index]

    def parse_from_file(self, model: str) -> bool:
        if self.module.refuses_graphs:
            self._errors.append(ParserError(self.module))
            return False
        graph = onnx.shape_inference.infer_shapes(onnx.load(model)).graph
        types = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.output, *graph.input)}
        for node in graph.node:
            kind = DTYPES[types[node.output[0]].elem_type]
            self._network._layers.append(
                Layer(self.module, node.op_type, Tensor(self.module, node.output[0], (), kind))
            )
        for value in graph.input:
            shape = tuple(dim.dim_value or -1 for dim in value.type.tensor_type.shape.dim)
            dtype = DTYPES[value.type.tensor_type.elem_type]
            self._network._inputs.append(Tensor(self.module, value.name, shape, dtype))
        self._network._path = model
        return True


class TimingCache(Fake):
    kind = "ITimingCache"

    def __init__(self, module: Any, data: bytes) -> None:
        super().__init__(module)
        self._data = data

    def serialize(self) -> bytes:
        return self._data + b"t"


class Config(Fake):
    kind = "IBuilderConfig"

    def clear_flag(self, flag: int) -> None:
        self.module.calls.append(("clear_flag", flag.name))

    def set_compute_capability(self, capability: int, index: int) -> bool:
        self.module.calls.append(("set_compute_capability", capability.name, index))
        return True

    def create_timing_cache(self, serialized_timing_cache: bytes) -> TimingCache:
        self.module.calls.append(("create_timing_cache", serialized_timing_cache))
        return TimingCache(self.module, serialized_timing_cache)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> TimingCache:
        return self._cache


class Builder(Fake):
    kind = "Builder"

    def __init__(self, module: Any, logger: Any) -> None:
        super().__init__(module)
        if module.has_no_device:
            logger.log(module.ILogger.Severity.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._logger = logger

    def create_network(self, flags: int = 0) -> Network:
        return Network(self.module, flags)

    def create_builder_config(self) -> Config:
        return Config(self.module)

    def build_serialized_network(self, network: Network, config: Config) -> Any:
        self.module.calls.append(("build_serialized_network", Path(network._path).name))
        if self.module.cannot_build:
            self._logger.log(self.module.ILogger.Severity.WARNING, "a warning")
            self._logger.log(self.module.ILogger.Severity.ERROR, self.module.cannot_build)
            return None
        return np.frombuffer(json.dumps({"graph": network._path}).encode() + self.module.plan_suffix, np.uint8)


class Engine(Fake):
    kind = "ICudaEngine"

    def __init__(self, module: Any, path: str) -> None:
        super().__init__(module)
        self._session = onnxruntime.InferenceSession(path)
        self._tensors = {
            node.name: (mode, tuple(node.shape))
            for mode, nodes in (("INPUT", self._session.get_inputs()), ("OUTPUT", self._session.get_outputs()))
            for node in nodes
        }

    @property
    def num_io_tensors(self) -> int:
        return len(self._tensors)

    def get_tensor_name(self, index: int) -> str:
        return list(self._tensors)[index]

    def get_tensor_mode(self, name: str) -> Any:
        return self.module.TensorIOMode[self._tensors[name][0]]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name][1]

    def get_tensor_dtype(self, name: str) -> Any:
        return self.module.DataType[self.module.io_dtype]

    def create_execution_context(self) -> "Context":
        return Context(self.module, self)


class Context(Fake):
    kind = "IExecutionContext"

    def __init__(self, module: Any, engine: Engine) -> None:
        super().__init__(module)
        self._engine, self._addresses = engine, dict[str, int]()

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        return True

    def execute_async_v3(self, stream_handle: int) -> bool:
        self.module.calls.append(("execute", stream_handle))
        if self.module.cannot_start:
            return False
        arrays = {
            name: np.ctypeslib.as_array((ctypes.c_float * int(np.prod(shape))).from_address(self._addresses[name]))
            for name, (_, shape) in self._engine._tensors.items()
        }
        tensors = self._engine._tensors
        feeds = {name: arrays[name].reshape(tensors[name][1]) for name in tensors if tensors[name][0] == "INPUT"}
        names = [name for name in tensors if tensors[name][0] == "OUTPUT"]
        for name, result in zip(names, self._engine._session.run(names, feeds), strict=True):
            arrays[name][:] = result.ravel()
        return True


class Runtime(Fake):
    kind = "Runtime"

    def __init__(self, module: Any, logger: Any) -> None:
        super().__init__(module)
        self._logger = logger

    def deserialize_cuda_engine(self, serialized_engine: bytes) -> Engine | None:
        self.module.calls.append(("deserialize",))
        try:
            return Engine(self.module, json.loads(serialized_engine)["graph"])
        except ValueError:
            self._logger.log(self.module.ILogger.Severity.ERROR, "The engine plan file is not compatible.")
            return None


def fake_module(release: str) -> Any:
    """The library as a module. release: 10, 11 or rtx. `calls` records what was asked of it."""
    surface = json.loads((HERE / f"{SURFACES[release]}.json").read_text())
    module: Any = ModuleType(surface["module"])
    module.surface, module.calls, module.__version__ = surface, [], surface["version"]
    module.refuses_graphs = module.has_no_device = module.cannot_start = False
    module.cannot_build, module.io_dtype, module.plan_suffix = "", "FLOAT", b""
    for path, members in surface["enums"].items():
        if "." not in path:
            setattr(module, path, IntEnum(path, {name: index for index, name in enumerate(members)}))
    severities = {name: index for index, name in enumerate(surface["enums"]["ILogger.Severity"])}
    module.ILogger = type("ILogger", (), {"Severity": IntEnum("Severity", severities)})
    for name, kind in {"Builder": Builder, "OnnxParser": Parser, "Runtime": Runtime}.items():
        setattr(module, name, lambda *arguments, kind=kind: kind(module, *arguments))
    return module


class FakeCuda:
    """libcuda on the CPU: device memory is host memory, streams are done at once. `live` counts what is not freed."""

    def __init__(self, target: str = "sm_89") -> None:
        self._major, self._minor = int(target[3:-1]), int(target[-1])
        self._memory: dict[int, Any] = {}
        self.live = {"memory": 0, "streams": 0, "contexts": 0}
        self.fails: set[str] = set()
        self.uploads = 0
        for name in ("cuInit", "cuCtxSetCurrent", "cuStreamSynchronize"):
            setattr(self, name, self._named(name, lambda *arguments: 0))
        for name in [name for name in dir(type(self)) if name.startswith("do_")]:
            setattr(self, name.removeprefix("do_"), self._named(name.removeprefix("do_"), getattr(self, name)))

    def _named(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> int:
            return 2 if name in self.fails else function(*arguments)

        return call

    def do_cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def do_cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        value._obj.value = {75: self._major, 76: self._minor}[attribute]
        return 0

    def do_cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> int:
        context._obj.value = 11
        self.live["contexts"] += 1
        return 0

    def do_cuDevicePrimaryCtxRelease_v2(self, device: int) -> int:
        self.live["contexts"] -= 1
        return 0

    def do_cuMemAlloc_v2(self, address: Any, size: int) -> int:
        buffer = (ctypes.c_char * size)()
        ctypes.memset(buffer, 0xFF, size)  # what nobody wrote is NaN
        address._obj.value = ctypes.addressof(buffer)
        self._memory[ctypes.addressof(buffer)] = buffer
        self.live["memory"] += 1
        return 0

    def do_cuMemFree_v2(self, address: int) -> int:
        del self._memory[address]
        self.live["memory"] -= 1
        return 0

    def do_cuMemcpyHtoDAsync_v2(self, address: int, source: int, size: int, stream: Any) -> int:
        self.uploads += 1
        assert size <= len(self._memory[address])
        ctypes.memmove(address, source, size)
        return 0

    def do_cuMemcpyDtoHAsync_v2(self, destination: int, address: int, size: int, stream: Any) -> int:
        assert size <= len(self._memory[address])
        ctypes.memmove(destination, address, size)
        return 0

    def do_cuStreamCreate(self, stream: Any, flags: int) -> int:
        stream._obj.value = 22
        self.live["streams"] += 1
        return 0

    def do_cuStreamDestroy_v2(self, stream: Any) -> int:
        self.live["streams"] -= 1
        return 0

    def do_cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"out of memory"
        return 0
