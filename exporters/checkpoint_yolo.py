"""YOLOv8 `.pt` files, which hold a pickled model object: its tensors, names and yaml, without making the object."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_pickle import Record, Storage, read_records
from vtk.exporters.checkpoint_torch import read_entry

_SIGNATURE = b"cultralytics.nn.tasks\n"
_STORAGE_TYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.DoubleStorage": torch.float64,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_SETS = ("builtins.set", "__builtin__.set")
_MODEL_FACTS = ("names", "yaml", "stride", "nc", "task")
_FILE_FACTS = ("train_args", "version", "date")

MAX_MODULES = 20_000
MAX_TENSORS = 100_000
MAX_DEPTH = 32
MAX_FACTS = 50_000


def is_yolo_pickle(path: Path, pickle_name: str) -> bool:
    """Whether the archive's pickle names a model class of the ultralytics package."""
    with zipfile.ZipFile(path) as archive:
        return _SIGNATURE in read_entry(archive, pickle_name, path.name)


def read_yolo_pickle(path: Path, pickle_name: str) -> tuple[dict[object, object], dict[str, dict[str, Any]]]:
    """`{part: {name: tensor}}` for the parts `ema` and `model`, and per part the facts that travelled with it."""
    with zipfile.ZipFile(path) as archive:
        tree = read_records(read_entry(archive, pickle_name, path.name), path.name)
        if not isinstance(tree, dict):
            raise CheckpointError(f"{path.name} holds no dictionary with a model in it.")
        reader = _ModelReader(archive, pickle_name.removesuffix("data.pkl"), path.name)
        shared = {key: value for key in _FILE_FACTS if (value := reader.fact(tree.get(key))) is not None}
        models = {part: tree[part] for part in ("ema", "model") if isinstance(tree.get(part), Record)}
        tensors: dict[object, object] = {part: dict(reader.tensors(model)) for part, model in models.items()}
        return tensors, {part: shared | reader.facts(model) for part, model in models.items()}


class _ModelReader:
    """Turns records of torch modules and tensors into tensors; everything else stays unread."""

    def __init__(self, archive: zipfile.ZipFile, root: str, source: str) -> None:
        self._archive = archive
        self._root = root
        self._source = source
        self._storages: dict[Storage, torch.Tensor] = {}
        self._modules = 0
        self._tensors = 0
        self._facts = 0
        order = f"{root}byteorder"
        if order in archive.namelist() and read_entry(archive, order, source) != b"little":
            raise CheckpointError(f"{source} was written on a big-endian machine, which vtk does not read.")

    def tensors(self, module: Record, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
        """What `module.state_dict()` would give."""
        self._modules += 1
        if depth > MAX_DEPTH or self._modules > MAX_MODULES:
            raise CheckpointError(f"{self._source}: its model is nested deeper or larger than any YOLOv8 model.")
        state = _items(module.state)
        temporary = _members(state.get("_non_persistent_buffers_set"))
        for kind in ("_parameters", "_buffers"):
            for name, value in _items(state.get(kind)).items():
                if value is not None and not (kind == "_buffers" and name in temporary):
                    yield f"{prefix}{name}", self.tensor(value, f"{prefix}{name}")
        for name, child in _items(state.get("_modules")).items():
            if isinstance(child, Record):
                yield from self.tensors(child, f"{prefix}{name}.", depth + 1)

    def tensor(self, value: Any, name: str) -> torch.Tensor:
        """A dense tensor from the record of `torch._utils._rebuild_tensor_v2`, bounds checked."""
        if isinstance(value, Record) and value.path in _PARAMETER and value.args:
            value = value.args[0]
        if not isinstance(value, Record) or value.path != "torch._utils._rebuild_tensor_v2" or len(value.args) < 4:
            kind = value.path if isinstance(value, Record) else type(value).__name__
            raise CheckpointError(f"{self._source}: tensor {name} is stored as {kind}, which vtk does not read.")
        storage, offset, shape, stride = value.args[:4]
        if not isinstance(storage, Storage) or not _fits(offset, shape, stride, storage.numel):
            raise CheckpointError(f"{self._source}: tensor {name} reaches outside its stored numbers.")
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise CheckpointError(f"{self._source}: its model unfolds to more than {MAX_TENSORS} tensors.")
        return self._storage(storage).as_strided(shape, stride, offset)

    def facts(self, module: Record) -> dict[str, Any]:
        """Names, yaml and strides of a model, as far as they are simple values."""
        state = _items(module.state)
        return {key: value for key in _MODEL_FACTS if (value := self.fact(state.get(key))) is not None}

    def fact(self, value: Any, depth: int = 0) -> Any:
        """A JSON-ready copy of a simple value; None for anything else."""
        self._facts += 1
        if self._facts > MAX_FACTS or depth > MAX_DEPTH:
            raise CheckpointError(f"{self._source}: the facts beside its tensors are larger than those of any model.")
        if isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return value
        if isinstance(value, (list, tuple)):
            return [self.fact(item, depth + 1) for item in value]
        if isinstance(value, Record) and value.path == "torch._utils._rebuild_tensor_v2":
            tensor = self.tensor(value, "of a fact")
            return tensor.tolist() if tensor.numel() < 100 else None
        if isinstance(value, (dict, Record)):
            items = _items(value.state if isinstance(value, Record) and not value.entries else value)
            return {str(key): self.fact(item, depth + 1) for key, item in items.items() if isinstance(key, (int, str))}
        return None

    def _storage(self, storage: Storage) -> torch.Tensor:
        if storage not in self._storages:
            dtype = _STORAGE_TYPES.get(storage.kind)
            data = read_entry(self._archive, f"{self._root}data/{storage.key}", self._source)
            if dtype is None or len(data) != storage.numel * dtype.itemsize:
                raise CheckpointError(f"{self._source}: storage {storage.key} is not {storage.numel} x {storage.kind}.")
            whole = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
            self._storages[storage] = whole
        return self._storages[storage]


def _items(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Record):
        return value.entries
    return value if isinstance(value, dict) else {}


def _members(value: Any) -> frozenset[Any]:
    if isinstance(value, Record) and value.path in _SETS and value.args and isinstance(value.args[0], list):
        return frozenset(item for item in value.args[0] if isinstance(item, str))
    return frozenset()


def _fits(offset: Any, shape: Any, stride: Any, numel: int) -> bool:
    if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(shape) != len(stride) or len(shape) > 8:
        return False
    if not all(type(number) is int and 0 <= number < 1 << 40 for number in (offset, numel, *shape, *stride)):
        return False
    last = offset + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    return 0 in shape or last < numel
