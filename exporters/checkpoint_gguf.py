"""GGUF files: typed metadata, and tensors whose quantized blocks stay as they are in the file.

Layout (ggml's GGUF description, versions 2 and 3, little-endian): magic, version, counts, key-value pairs, tensor
table, then the data at the next multiple of `general.alignment`. The file is mapped, never read whole, and every count
and length is checked against what is left of it.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_hash import digest_tensors, file_sha256
from vtk.exporters.checkpoint_stored import StoredTensor, digested

__all__ = ["GgufFile", "GgufTensor", "GgufValue", "is_gguf", "read_gguf"]

GgufValue: TypeAlias = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = MAX_TENSORS = 100_000
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 1 << 24
MAX_ITEMS = 1 << 24
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32

_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9
# Type number -> name, PyTorch's name, and how NumPy, which lacks bfloat16, holds it.
_PLAIN: dict[int, tuple[str, str, np.dtype[Any]]] = {
    0: ("F32", "float32", np.dtype(np.float32)),
    1: ("F16", "float16", np.dtype(np.float16)),
    30: ("BF16", "bfloat16", np.dtype(np.uint16)),
}
# Type number -> name, values of a block, bytes of a block.
_BLOCKS = {
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
}
_UNREAD = {6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 34: "TQ1_0", 35: "TQ2_0"}
_UNREAD |= {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S"}
_UNREAD |= {23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 39: "MXFP4"}


@dataclass(frozen=True, eq=False)
class GgufTensor:
    """One tensor. type: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K. shape: row-major, as PyTorch would say it.

    data: of `shape` for the float types, BF16 as uint16 bits; else uint8, the last axis replaced by the bytes of a
    row's blocks. It views the mapped file and must not be written.
    """

    type: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    @property
    def is_plain(self) -> bool:
        """Stored as numbers, not as quantized blocks."""
        return self.data.dtype != np.uint8


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file as stored. tensor_digest covers float tensors by name, quantized ones as `name:TYPE` and blocks.

    forget_pages: takes what was read of the file so far out of this process's memory.
    """

    path: Path
    metadata: Mapping[str, GgufValue]
    tensors: Mapping[str, GgufTensor]
    file_sha256: str
    tensor_digest: str
    forget_pages: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class _Entry:
    """A row of the tensor table; offset counts from the start of the data."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int

    @property
    def type_name(self) -> str:
        return _PLAIN[self.type][0] if self.type in _PLAIN else _BLOCKS[self.type][0]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the data in elements of its storage type."""
        if self.type in _PLAIN:
            return self.shape
        _, values, size = _BLOCKS[self.type]
        return (*self.shape[:-1], self.shape[-1] // values * size)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.stored_shape) * (_PLAIN[self.type][2].itemsize if self.type in _PLAIN else 1)


class _Cursor:
    """Reads forward through the mapped file; every failure is one line."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self.name = name
        self.position = 0

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.name} is damaged or truncated: {what}.", hint="Download the file again.")

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.position:
            raise self.fail(f"{count} more bytes were expected at {self.position}, the file has {len(self._data)}")
        self.position += count
        return self._data[self.position - count : self.position]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self, what: str, limit: int) -> int:
        value = int(struct.unpack("<Q", self.take(8))[0])
        if value > limit:
            raise self.fail(f"it claims {what} of {value}, at most {limit} is possible")
        return value

    def string(self, limit: int = MAX_STRING_BYTES) -> str:
        data = self.take(self.u64("a text length", limit))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fail(f"the text before byte {self.position} is not UTF-8") from None

    def value(self, key: str) -> GgufValue:
        kind = self.u32()
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            kind, count = self.u32(), self.u64("an array length", MAX_ITEMS)
            if kind == _STRING:
                return [self.string() for _ in range(count)]
            return self._scalars(key, kind, count)
        (value,) = self._scalars(key, kind, 1)
        return value

    def _scalars(self, key: str, kind: int, count: int) -> list[int] | list[float] | list[bool]:
        if kind not in _SCALARS:
            raise self.fail(f"'{key}' has the unknown value type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        values: list[int] | list[float] | list[bool]
        values = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return values


def is_gguf(path: Path) -> bool:
    """The file begins as a GGUF file does."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read_gguf(path: Path) -> GgufFile:
    """Map a GGUF file. Raises CheckpointError, in one line, for anything that is not a whole, readable one."""
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise CheckpointError(f"{path.name} is empty.", hint="Download the file again.")
            # Private, so that tensors of PyTorch, which has no read-only ones, may view it. Nothing writes to it.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        metadata, tensors = _parse(data, path.name)

        def forget_pages() -> None:
            data.madvise(mmap.MADV_DONTNEED)

        digest = digest_tensors(digested(dict(map(_stored, tensors, tensors.values())), forget_pages))
        return GgufFile(path, metadata, tensors, file_sha256(path), digest, forget_pages)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _stored(name: str, tensor: GgufTensor) -> tuple[str, StoredTensor]:
    """As the digest names a tensor."""
    plain = {gguf: dtype for gguf, dtype, _ in _PLAIN.values()}
    if tensor.type in plain:
        return name, StoredTensor(plain[tensor.type], tensor.data)
    return f"{name}:{tensor.type}", StoredTensor("uint8", tensor.data)


def _parse(data: mmap.mmap, name: str) -> tuple[dict[str, GgufValue], dict[str, GgufTensor]]:
    cursor = _Cursor(data, name)
    if cursor.take(4) != MAGIC:
        raise CheckpointError(f"{name} is not a GGUF file: it does not begin with GGUF.")
    version = cursor.u32()
    if version not in VERSIONS:
        kind = (
            "big-endian" if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS else f"version {version}"
        )
        raise CheckpointError(f"{name} is a {kind} GGUF file; vtk reads little-endian versions 2 and 3.")
    num_tensors = cursor.u64("a number of tensors", MAX_TENSORS)
    num_pairs = cursor.u64("a number of metadata entries", MAX_PAIRS)
    metadata: dict[str, GgufValue] = {}
    for _ in range(num_pairs):
        key = cursor.string(MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.fail(f"the key '{key[:60]}' occurs twice")
        metadata[key] = cursor.value(key[:60])
    entries = [_read_entry(cursor) for _ in range(num_tensors)]
    return metadata, _view_tensors(data, cursor, entries, _alignment(metadata, cursor))


def _alignment(metadata: Mapping[str, GgufValue], cursor: _Cursor) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 8 <= value <= 1 << 20 or value & (value - 1):
        raise cursor.fail(f"its alignment is {str(value)[:40]}, not a power of two of at least 8")
    return value


def _read_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string(MAX_KEY_BYTES)
    num_dims = cursor.u32()
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fail(f"tensor {name[:60]} has {num_dims} dimensions")
    shape = tuple(cursor.u64("a dimension", 1 << 40) for _ in range(num_dims))[::-1]
    kind = cursor.u32()
    if kind not in _PLAIN and kind not in _BLOCKS:
        known = ", ".join([name for name, *_ in _PLAIN.values()] + [name for name, *_ in _BLOCKS.values()])
        found = _UNREAD.get(kind, f"number {kind}")
        raise CheckpointError(
            f"{cursor.name}: tensor {name[:60]} has the type {found}, which vtk does not read.",
            hint=f"Take a file whose tensors are {known} (such as Q8_0, Q4_0, Q4_1 or Q4_K_M).",
        )
    if kind in _BLOCKS and shape[-1] % _BLOCKS[kind][1]:
        raise cursor.fail(f"tensor {name[:60]} has rows of {shape[-1]}, no whole {_BLOCKS[kind][0]} blocks")
    return _Entry(name, kind, shape, cursor.u64("an offset", 1 << 50))


def _view_tensors(data: mmap.mmap, cursor: _Cursor, entries: list[_Entry], alignment: int) -> dict[str, GgufTensor]:
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.offset):
        name = entry.name[:60]
        if entry.name in tensors:
            raise cursor.fail(f"tensor {name} occurs twice")
        if entry.offset % alignment or entry.offset < end or not entry.num_bytes:
            raise cursor.fail(f"tensor {name} is empty, misaligned or overlaps another one")
        end = entry.offset + entry.num_bytes
        if start + end > len(data):
            raise cursor.fail(f"tensor {name} ends at byte {start + end}, the file has {len(data)}")
        held = _PLAIN[entry.type][2] if entry.type in _PLAIN else np.dtype(np.uint8)
        flat = np.frombuffer(data, held, math.prod(entry.stored_shape), start + entry.offset)
        tensors[entry.name] = GgufTensor(entry.type_name, entry.shape, flat.reshape(entry.stored_shape))
    return tensors
