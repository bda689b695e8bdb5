"""Requests and answers as protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtk.errors import UsageError
from vtk.server.kserve.messages import MESSAGES
from vtk.server.kserve.request import InferRequest, InferResponse, request_options, requested_output
from vtk.server.kserve.tensors import BYTES, InputTensor, OutputTensor, write_binary

# Where a message that is not raw has its elements; no model takes tensors of other types.
_CONTENTS = {"FP32": "fp32_contents", BYTES: "bytes_contents"}


def read_message(message: Any) -> InferRequest:
    """A ModelInferRequest. Raises UsageError."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise UsageError(
            f"raw_input_contents has {len(raw)} entries for {len(message.inputs)} input(s).",
            hint="Either every input is raw, or none.",
        )
    return InferRequest(
        model=message.model_name,
        version=message.model_version,
        id=message.id,
        inputs=tuple(_input(item, raw[index] if raw else None) for index, item in enumerate(message.inputs)),
        outputs=tuple(requested_output(item.name, read_parameters(item.parameters)) for item in message.outputs),
        options=request_options(read_parameters(message.parameters)),
    )


def read_parameters(parameters: Mapping[str, Any]) -> dict[str, object]:
    """Python values of a map of parameters; one without a value is None."""
    chosen = {name: value.WhichOneof("parameter_choice") for name, value in parameters.items()}
    return {name: getattr(parameters[name], field) if field else None for name, field in chosen.items()}


def write_message(response: InferResponse) -> Any:
    """A ModelInferResponse with its tensors in binary form."""
    return MESSAGES["ModelInferResponse"](
        model_name=response.model,
        model_version=response.version,
        id=response.id,
        outputs=[_output(tensor) for tensor in response.outputs],
        raw_output_contents=[write_binary(tensor.array) for tensor in response.outputs],
    )


def _input(item: Any, raw: bytes | None) -> InputTensor:
    if item.parameters:
        raise UsageError(f"Parameter '{min(item.parameters)}' of input '{item.name}' is not served.")
    data = getattr(item.contents, _CONTENTS[item.datatype]) if item.datatype in _CONTENTS else ()
    return InputTensor(item.name, item.datatype, tuple(item.shape), data if raw is None else raw)


def _output(tensor: OutputTensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.array.shape}
