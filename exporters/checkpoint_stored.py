"""Safetensors mapped into memory as NumPy arrays: what the language engine reads, without torch."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_files import open_weight_file
from vtk.exporters.checkpoint_hash import digest_tensors
from vtk.exporters.checkpoint_json import unrepeated
from vtk.exporters.checkpoint_names import MAX_NAME_LENGTH, MAX_TENSORS, strip_wrappers

# safetensors' name of a type -> PyTorch's, and how NumPy holds it: as bits where it has no such type.
_DTYPES: dict[str, tuple[str, type[np.generic]]] = {
    "F64": ("float64", np.float64), "F32": ("float32", np.float32), "F16": ("float16", np.float16),
    "BF16": ("bfloat16", np.uint16), "F8_E4M3": ("float8_e4m3fn", np.uint8), "F8_E5M2": ("float8_e5m2", np.uint8),
    "I64": ("int64", np.int64), "I32": ("int32", np.int32), "I16": ("int16", np.int16), "I8": ("int8", np.int8),
    "U64": ("uint64", np.uint64), "U32": ("uint32", np.uint32), "U16": ("uint16", np.uint16), "U8": ("uint8", np.uint8),
    "BOOL": ("bool", np.bool_),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """dtype: as PyTorch calls it, such as `bfloat16`. data: of its shape, not to be written; bfloat16 as its bits."""

    dtype: str
    data: npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class StoredCheckpoint:
    """The tensors of a folder by name, only wrappers stripped. Hashes are those of `Checkpoint`.

    forget_pages: takes what was read of the files so far out of this process's memory.
    """

    path: Path
    tensors: Mapping[str, StoredTensor]
    file_sha256: str
    tensor_digest: str
    forget_pages: Callable[[], None]


def read_stored(folder: Path) -> StoredCheckpoint:
    """Map `model.safetensors`, or shards and their index. Raises CheckpointError for anything else."""
    mapped: list[mmap.mmap] = []

    def forget_pages() -> None:
        for memory in mapped:
            memory.madvise(mmap.MADV_DONTNEED)

    def read(path: Path) -> tuple[dict[object, object], dict[str, Any]]:
        tensors, metadata, memory = _map(path)
        mapped.append(memory)
        return tensors, metadata

    file = open_weight_file(folder, read)
    found = {str(name): tensor for name, tensor in file.tree.items() if isinstance(tensor, StoredTensor)}
    if not 0 < len(found) <= MAX_TENSORS:
        raise CheckpointError(f"{folder.name} holds {len(found)} tensors; vtk reads 1 to {MAX_TENSORS}.")
    if (longest := max(found, key=len))[MAX_NAME_LENGTH:]:
        raise CheckpointError(f"{folder.name}: a tensor's name is {len(longest)} characters long: {longest[:60]}…")
    tensors, _ = strip_wrappers(found, folder.name)
    digest = digest_tensors(digested(tensors, forget_pages))
    return StoredCheckpoint(folder, tensors, file.sha256, digest, forget_pages)


def _map(path: Path) -> tuple[dict[object, object], dict[str, Any], mmap.mmap]:
    """The tensors of one file, its own metadata, and the mapped file; safetensors' own reader checks the header."""
    with safe_open(path, framework="np") as checked, path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        start = 8 + int.from_bytes(memory[:8], "little")
        header = json.loads(memory[8:start], object_pairs_hook=unrepeated)
        names = checked.keys()
        tensors: dict[object, object] = {name: _view(memory, start, name, header[name], path.name) for name in names}
        return tensors, dict(checked.metadata() or {}), memory


def _view(memory: mmap.mmap, start: int, name: str, entry: dict[str, Any], source: str) -> StoredTensor:
    if entry["dtype"] not in _DTYPES:
        raise CheckpointError(f"{source}: tensor {name} has the type {entry['dtype']}, which vtk does not read.")
    dtype, held = _DTYPES[entry["dtype"]]
    begin, _ = entry["data_offsets"]
    data = np.frombuffer(memory, held, math.prod(entry["shape"]), start + begin).reshape(entry["shape"])
    return StoredTensor(dtype, data if data.flags.aligned else data.copy())


def digested(
    tensors: Mapping[str, StoredTensor], forget_pages: Callable[[], None]
) -> Iterator[tuple[str, str, tuple[int, ...], memoryview]]:
    """What `digest_tensors` takes, sorted; a tensor's pages are forgotten when the next one is asked for."""
    for name, tensor in sorted(tensors.items()):
        yield name, tensor.dtype, tensor.data.shape, tensor.data.reshape(-1).view(np.uint8).data
        forget_pages()
