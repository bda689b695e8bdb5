"""Records the names of an installed TensorRT for the tests: python record.py tensorrt 11.4.0.106.json

The bindings import without a GPU and, for a look at their names, without NVIDIA's libraries too: stubs of
libnvinfer, libnvonnxparser and libnvinfer_plugin on LD_LIBRARY_PATH are enough for `tensorrt_bindings`.
"""

import importlib
import json
import sys
from functools import reduce
from pathlib import Path
from typing import Any

CLASSES = (
    "Builder",
    "IBuilderConfig",
    "INetworkDefinition",
    "OnnxParser",
    "ParserError",
    "ILayer",
    "ITensor",
    "IHostMemory",
    "ITimingCache",
    "Runtime",
    "ICudaEngine",
    "IExecutionContext",
    "ILogger",
)
ENUMS = (
    "BuilderFlag",
    "NetworkDefinitionCreationFlag",
    "OnnxParserFlag",
    "DataType",
    "LayerType",
    "ILogger.Severity",
    "TensorIOMode",
    "ProfilingVerbosity",
    "HardwareCompatibilityLevel",
    "ComputeCapability",
    "MemoryPoolType",
)


def record(module: Any, version: str) -> str:
    """One line per class and enum, so that a new release is a readable change."""

    def find(path: str) -> Any:
        return reduce(lambda item, name: getattr(item, name, None), path.split("."), module)

    names = {item: [name for name in dir(find(item)) if _is_used(item, name)] for item in CLASSES}
    members = {item: sorted(find(item).__members__) for item in ENUMS if find(item) is not None}
    blocks = [
        f' "{title}": {{\n' + ",\n".join(f"  {json.dumps(key)}: {json.dumps(table[key])}" for key in table) + "\n }"
        for title, table in (("classes", names), ("enums", members))
    ]
    kind = module.__name__.removesuffix("_bindings")
    head = f' "module": {json.dumps(kind)},\n "version": {json.dumps(version)}'
    return "{\n" + ",\n".join([head, *blocks]) + "\n}\n"


def _is_used(kind: str, name: str) -> bool:
    """Networks come from ONNX, so what builds them by hand is left out."""
    return not name.startswith("_") and not (kind == "INetworkDefinition" and name.startswith("add_"))


if __name__ == "__main__":
    library = importlib.import_module(sys.argv[1])
    Path(sys.argv[2]).write_text(record(library, library.__version__))
