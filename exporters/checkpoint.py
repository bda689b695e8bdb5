"""The one reader of vision weight files: tensors, their digest, and which of a file's several weights they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

CheckpointFormat = Literal["safetensors", "safetensors-sharded", "pth", "yolov8-pickle"]


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights, as stored: dtypes are untouched and names have only wrappers stripped.

    file_sha256: of the file's bytes (for shards: of the sorted list of shard hashes). tensor_digest: SHA-256 over
    sorted (name, dtype, shape, bytes) of `tensors`. weights: which part of the file this is (`ema.module`, `model`,
    `state_dict`, `flat`); available_weights: every part it holds. stripped: prefixes removed from the names. metadata:
    JSON-ready facts that travelled with the tensors (`config` of a Hugging Face folder, `yaml`, `names`, `stride` of a
    YOLOv8 file, safetensors' own metadata).
    """

    path: Path
    format: CheckpointFormat
    tensors: Mapping[str, torch.Tensor]
    file_sha256: str
    tensor_digest: str
    weights: str
    available_weights: tuple[str, ...]
    stripped: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_parameters(self) -> int:
        """Elements of all floating tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values() if tensor.is_floating_point())


def read_checkpoint(path: Path, *, weights: str | None = None) -> Checkpoint:
    """Read without running anything that the file says."""
    raise NotImplementedError
