"""One file of tensor data that several graphs share (ONNX external data)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType

import onnx_ir as ir

WEIGHTS_NAME = "model.weights"
INLINE_BYTES = 1024
ALIGNMENT = 64
# Memory mapping needs offsets at the allocation granularity (64 KiB on Windows, a multiple of 4 KiB pages); only
# tensors this large are worth the padding.
MAP_ALIGNMENT = 64 * 1024
MAP_BYTES = 1024 * 1024


class WeightsFile:
    """Appends tensors, each content once; the owner of the open file. Holds one tensor in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._offsets: dict[bytes, int] = {}

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close, and leave no empty file behind when every tensor was small."""
        self._file.close()
        if not self._offsets:
            self.path.unlink()

    def move_out(self, model: ir.Model) -> None:
        """Point the initializers of more than `INLINE_BYTES` at this file; the rest stays in the graph."""
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor.nbytes > INLINE_BYTES:
                value.const_value = ir.ExternalTensor(
                    self.path.name,
                    self._append(tensor.tobytes()),
                    tensor.nbytes,
                    tensor.dtype,
                    shape=tensor.shape,
                    name=value.name,
                    base_dir=self.path.parent,
                )
        self._file.flush()

    def _append(self, data: bytes) -> int:
        key = hashlib.sha256(data).digest()
        if key not in self._offsets:
            alignment = MAP_ALIGNMENT if len(data) >= MAP_BYTES else ALIGNMENT
            position = self._file.tell()
            self._file.write(bytes(-position % alignment))
            self._offsets[key] = self._file.tell()
            self._file.write(data)
        return self._offsets[key]
