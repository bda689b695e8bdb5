"""What goes in and out of an ONNX file, and which files hold its tensors, without running it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vtk.engines.base import TensorSpec
from vtk.engines.feeds import static_shape
from vtk.errors import MissingDependencyError


@dataclass(frozen=True)
class TensorShapes:
    """inputs and outputs in the order of the graph. weights: names of the files beside it that hold its tensors."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    weights: tuple[str, ...]


def read_io(path: Path) -> TensorShapes:
    """Read the graph without its external tensors. Raises MissingDependencyError without onnx."""
    try:
        import onnx
    except ImportError:
        raise MissingDependencyError("onnx", needed_for="Reading ONNX files", extra="export") from None
    graph = onnx.load(str(path), load_external_data=False).graph
    locations = {
        entry.value for tensor in graph.initializer for entry in tensor.external_data if entry.key == "location"
    }
    return TensorShapes(
        tuple(_spec(value) for value in graph.input),
        tuple(_spec(value) for value in graph.output),
        tuple(sorted(locations)),
    )


def _spec(value: Any) -> TensorSpec:
    import onnx

    kind = value.type.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim]
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return TensorSpec(value.name, static_shape(value.name, dims), dtype)
