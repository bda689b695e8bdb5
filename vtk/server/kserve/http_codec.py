"""Requests and answers as HTTP bodies: JSON, or JSON followed by the binary form of some tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from vtk.errors import UsageError
from vtk.server.json_values import check_values
from vtk.server.kserve.request import (
    InferRequest,
    InferResponse,
    RequestedOutput,
    check_parameters,
    request_options,
    requested_output,
)
from vtk.server.kserve.tensors import InputTensor, OutputTensor, write_binary, write_elements

HEADER_LENGTH = "Inference-Header-Content-Length"
MAX_VALUES = 1 << 22  # of one body: 64 MiB of numbers as JSON, and no more
MAX_SHOWN = 10  # unknown fields that a message names
_REQUEST_FIELDS = frozenset({"id", "parameters", "inputs", "outputs"})
_INPUT_FIELDS = frozenset({"name", "shape", "datatype", "parameters", "data"})
_OUTPUT_FIELDS = frozenset({"name", "parameters"})

T = TypeVar("T")


def read_object(body: bytes | memoryview) -> dict[str, Any]:
    """A JSON object; an empty body is an empty one. Raises UsageError, also for NaN, which JSON does not
    have, and RequestError for too many values."""
    if not body:
        return {}
    check_values(bytes(body), MAX_VALUES)
    try:
        value = json.loads(bytes(body), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The body is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise UsageError(f"The body must be a JSON object; got {type(value).__name__}.")
    return value


def read_request(body: bytes, header_length: str | None, *, model: str, version: str) -> InferRequest:
    """`header_length`: how many bytes of the body are JSON, None for all. Raises UsageError."""
    split = _header_length(header_length, len(body))
    data = read_object(memoryview(body)[:split])
    check_fields(data, _REQUEST_FIELDS, "The request")
    blobs = _Blobs(memoryview(body)[split:])
    inputs = tuple(_input(item, blobs) for item in _objects(data, "inputs"))
    blobs.check_end()
    return InferRequest(
        model=model,
        version=version,
        id=take(data, "id", str, ""),
        inputs=inputs,
        outputs=tuple(_output(item) for item in _objects(data, "outputs")),
        options=request_options(take(data, "parameters", dict, {})),
    )


def write_response(response: InferResponse) -> tuple[bytes, dict[str, str]]:
    """Body and headers. Raises UsageError for values that JSON cannot say."""
    blobs: list[bytes] = []
    outputs = [_written(tensor, blobs) for tensor in response.outputs]
    values = {"model_name": response.model, "model_version": response.version, "outputs": outputs}
    if response.id:
        values["id"] = response.id
    text = json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
    if not blobs:
        return text, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}
    return b"".join([text, *blobs]), headers


def take(data: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
    """A field of a JSON object. Raises UsageError if it is of another type, or missing without a default."""
    value = data.get(name, default)
    if type(value) is not kind:
        got = "nothing" if value is None else type(value).__name__
        raise UsageError(f"Field '{name}' must be a JSON {_JSON_NAMES[kind]}; got {got}.")
    return value


def check_fields(data: Mapping[str, Any], known: frozenset[str], what: str) -> None:
    """Raise UsageError for fields that nothing would read."""
    if unknown := data.keys() - known:
        raise UsageError(
            f"{what} has unknown fields: {', '.join(sorted(unknown)[:MAX_SHOWN])}.",
            hint=f"Known here: {', '.join(sorted(known))}.",
        )


class _Blobs:
    """What follows the JSON: the tensors' binary forms, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    def next(self, size: int, name: str) -> memoryview:
        left = len(self._data) - self._position
        if not 0 <= size <= left:
            raise UsageError(f"Input '{name}' announces {size:,} bytes of binary data; {left:,} bytes follow.")
        self._position += size
        return self._data[self._position - size : self._position]

    def check_end(self) -> None:
        if left := len(self._data) - self._position:
            raise UsageError(
                f"{left:,} bytes of the body belong to no input.",
                hint=f"{HEADER_LENGTH} and the binary_data_size of all inputs must add up to the body.",
            )


_JSON_NAMES: Mapping[type, str] = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


def _header_length(text: str | None, body: int) -> int:
    if text is None:
        return body
    length = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 < length <= body:
        raise UsageError(f"{HEADER_LENGTH} must be the bytes of JSON, 1 to the body's {body:,}; got '{text:.40}'.")
    return length


def _objects(data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    items = take(data, name, list, [])
    if not all(isinstance(item, dict) for item in items):
        raise UsageError(f"Every item of '{name}' must be a JSON object.")
    return items


def _input(item: Mapping[str, Any], blobs: _Blobs) -> InputTensor:
    name = take(item, "name", str)
    check_fields(item, _INPUT_FIELDS, f"Input '{name}'")
    shape = take(item, "shape", list)
    if not all(type(side) is int for side in shape):
        raise UsageError(f"Input '{name}': shape must hold integers only.")
    parameters = check_parameters(take(item, "parameters", dict, {}), {"binary_data_size": int}, f"input '{name}'")
    size = parameters.get("binary_data_size")
    if (size is None) == ("data" not in item):
        raise UsageError(f"Input '{name}' must have either 'data' or the parameter binary_data_size.")
    data = take(item, "data", list) if size is None else blobs.next(size, name)
    return InputTensor(name, take(item, "datatype", str), tuple(shape), data)


def _output(item: Mapping[str, Any]) -> RequestedOutput:
    name = take(item, "name", str)
    check_fields(item, _OUTPUT_FIELDS, f"Output '{name}'")
    return requested_output(name, take(item, "parameters", dict, {}))


def _written(tensor: OutputTensor, blobs: list[bytes]) -> dict[str, Any]:
    values: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.array.shape)}
    if not tensor.binary:
        return {**values, "data": write_elements(tensor)}
    blobs.append(write_binary(tensor.array))
    return {**values, "parameters": {"binary_data_size": len(blobs[-1])}}
