"""Requests and answers as protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vtk.errors import UsageError
from vtk.server.kserve.messages import MESSAGES
from vtk.server.kserve.request import InferRequest, InferResponse, request_options, requested_output
from vtk.server.kserve.tensors import BYTES, InputTensor, OutputTensor, write_binary

MAX_FIELDS = 1024  # of a message: names, parameters, inputs, outputs
# How the value of a field is written, and the bytes of those that have a fixed size.
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
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


def check_fields(data: bytes) -> None:
    """Raise UsageError for a message of more than MAX_FIELDS fields, before it is parsed.

    An input without content has two bytes on the wire and becomes a kilobyte of objects. What is no message at all is
    left to the parser.
    """
    position = 0
    for _ in range(MAX_FIELDS):
        if position >= len(data):
            return
        tag, position = _varint(data, position)
        value, position = _varint(data, position) if tag & 7 in (_VARINT, _BYTES) else (0, position)
        position += value if tag & 7 == _BYTES else _FIXED.get(tag & 7, 0)
    if position < len(data):
        raise UsageError(f"The message has more than {MAX_FIELDS:,} fields.")


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """The number of 7 bits a byte, lowest first, that begins at `start`; and where it ends."""
    value = 0
    for place, byte in enumerate(data[start : start + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, start + place + 1
    return value, len(data)


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
