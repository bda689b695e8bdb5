"""Tensors as the protocol carries them: names of types, the binary form, the JSON form."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.engines.base import Array
from vtk.errors import UsageError

BYTES = "BYTES"
# The protocol's name of each NumPy type that an engine may return.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class TensorMeta:
    """What a model takes or gives. shape: -1 is any number of rows."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class InputTensor:
    """One tensor as a client sent it: nothing is checked yet but the types of these fields.

    data: the binary form, or the elements, flat or nested.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | Sequence[Any]


@dataclass(frozen=True, eq=False)
class OutputTensor:
    """One tensor of an answer. array: of a type in DATATYPES, or objects of type `bytes`. binary: HTTP only."""

    name: str
    array: npt.NDArray[Any]
    binary: bool

    @property
    def datatype(self) -> str:
        """The protocol's name of its type."""
        return BYTES if self.array.dtype == object else DATATYPES[self.array.dtype.name]


def check_input(tensor: InputTensor, meta: TensorMeta, max_rows: int) -> None:
    """Raise UsageError unless type and shape are those of `meta`, with 1 to `max_rows` rows.

    Whatever is made from the tensor afterwards is bounded by this.
    """
    rows = tensor.shape[0] if tensor.shape else 0
    fits = tensor.datatype == meta.datatype and tensor.shape[1:] == meta.shape[1:]
    if not fits or len(tensor.shape) != len(meta.shape) or not 1 <= rows <= max_rows:
        wanted = ", ".join(["N", *map(str, meta.shape[1:])])
        raise UsageError(
            f"Input '{meta.name}' must be {meta.datatype} of shape [{wanted}] with N from 1 to {max_rows}; "
            f"got {tensor.datatype} of shape {list(tensor.shape)}."
        )


def read_floats(tensor: InputTensor) -> npt.NDArray[np.float32]:
    """An FP32 tensor of checked shape; the binary form is not copied. Raises UsageError."""
    if not isinstance(tensor.data, bytes | memoryview):
        return _floats_of_elements(tensor, tensor.data)
    expected = 4 * math.prod(tensor.shape)
    if len(tensor.data) != expected:
        raise UsageError(
            f"Input '{tensor.name}' of shape {list(tensor.shape)} must have {expected:,} bytes of binary data; "
            f"got {len(tensor.data):,}."
        )
    return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)


def read_bytes(tensor: InputTensor) -> list[bytes]:
    """The elements of a BYTES tensor of checked shape, in row-major order. Raises UsageError.

    Elements that are text, as JSON has no other, are base64: pictures are not text.
    """
    count = math.prod(tensor.shape)
    if isinstance(tensor.data, bytes | memoryview):
        return split_elements(tensor.data, count, name=tensor.name)
    if len(tensor.data) != count:
        raise _wrong_count(tensor.name, count, str(len(tensor.data)))
    return [_element(tensor.name, value) for value in tensor.data]


def split_elements(data: bytes | memoryview, count: int, *, name: str) -> list[bytes]:
    """`count` elements out of the binary form: each is its length, 4 bytes little-endian, and its content.

    Raises UsageError where the data ends before the elements do, or does not end with them.
    """
    elements: list[bytes] = []
    position = 0
    while position < len(data) and len(elements) < count:
        start = position + _LENGTH.size
        length = _LENGTH.unpack_from(data, position)[0] if start <= len(data) else 0
        if start + length > len(data):
            raise UsageError(
                f"Input '{name}': element {len(elements)} at byte {position:,} announces {length:,} bytes "
                f"after its 4 bytes of length; {len(data) - position:,} bytes are left.",
                hint="Each element of a BYTES tensor starts with its length, 4 bytes little-endian.",
            )
        position = start + length
        elements.append(bytes(data[start:position]))
    if len(elements) != count or position != len(data):
        raise _wrong_count(name, count, f"{len(elements)} and {len(data) - position:,} more bytes")
    return elements


def join_elements(elements: Sequence[bytes]) -> bytes:
    """The inverse of `split_elements`."""
    return b"".join(part for element in elements for part in (_LENGTH.pack(len(element)), element))


def write_binary(array: npt.NDArray[Any]) -> bytes:
    """The binary form of an answer: row-major, little-endian."""
    if array.dtype == object:
        return join_elements(array.ravel().tolist())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def write_elements(tensor: OutputTensor) -> list[Any]:
    """The JSON form of an answer: flat, row-major. Raises UsageError for what JSON cannot say."""
    if tensor.datatype == BYTES:
        return [element.decode() for element in tensor.array.ravel()]
    if tensor.array.dtype.kind == "f" and not np.isfinite(tensor.array).all():
        raise UsageError(
            f"Output '{tensor.name}' holds NaN or infinite values, which JSON cannot say.",
            hint='Ask for it in binary: "parameters": {"binary_data": true}.',
        )
    flat: list[Any] = tensor.array.ravel().tolist()
    return flat


def _wrong_count(name: str, expected: int, got: str) -> UsageError:
    return UsageError(f"Input '{name}' must have {expected} element(s) by its shape; got {got}.")


def _floats_of_elements(tensor: InputTensor, elements: Sequence[Any]) -> npt.NDArray[np.float32]:
    try:
        array: Array = np.array(elements)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"Input '{tensor.name}': data is no rectangular list of numbers: {error}.") from error
    if array.dtype.kind not in "iuf":
        raise UsageError(f"Input '{tensor.name}': data must hold numbers only; NumPy reads it as {array.dtype}.")
    if array.shape not in (tensor.shape, (math.prod(tensor.shape),)):
        raise UsageError(
            f"Input '{tensor.name}' of shape {list(tensor.shape)} must have {math.prod(tensor.shape):,} elements, "
            f"flat or nested in that shape; got shape {list(array.shape)}."
        )
    with np.errstate(over="ignore"):
        floats = array.astype(np.float32).reshape(tensor.shape)
    if not np.isfinite(floats).all():
        raise UsageError(f"Input '{tensor.name}': data holds numbers beyond the range of FP32.")
    return floats


def _element(name: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise UsageError(
            f"Input '{name}': an element of a BYTES tensor in JSON must be a base64 string: {error}.",
            hint="Or send the bytes as they are, with the binary tensor extension.",
        ) from error
