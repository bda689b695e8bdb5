"""The one reader of vision weight files: tensors, their digest, and which of a file's several weights they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtk.exporters.checkpoint_digest import tensor_digest
from vtk.exporters.checkpoint_files import CheckpointFormat, open_weight_file
from vtk.exporters.checkpoint_names import choose_part, find_parts, split_tensors, strip_wrappers

if TYPE_CHECKING:
    import torch

__all__ = ["Checkpoint", "CheckpointFormat", "read_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """One set of weights, as stored: dtypes are untouched and names have only wrappers stripped.

    file_sha256: of the file's bytes (for shards: of the sorted list of shard hashes). tensor_digest: SHA-256 over
    sorted (name, dtype, shape, bytes) of `tensors`. weights: which part of the file this is (`ema.module`, `model`,
    `state_dict`, `flat`); available_weights: every part it holds, best first. stripped: prefixes removed from the
    names. ignored: names in this part that hold no tensor. metadata: JSON-ready facts that travelled with the tensors
    (`config` of a Hugging Face folder, `args` of a trainer's command line, `yaml`, `names`, `stride` of a YOLOv8
    file, safetensors' own metadata).
    """

    path: Path
    format: CheckpointFormat
    tensors: Mapping[str, torch.Tensor]
    file_sha256: str
    tensor_digest: str
    weights: str
    available_weights: tuple[str, ...]
    stripped: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_parameters(self) -> int:
        """Elements of all floating tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values() if tensor.is_floating_point())


def read_checkpoint(path: Path, *, weights: str | None = None) -> Checkpoint:
    """Read without running anything that the file says.

    `path` is a `.safetensors`, `.pth` or `.pt` file, or a folder with `model.safetensors` or shards and their index.
    `weights` names the part to take (`model`, `ema`, …); without it the exponential moving average is preferred.
    Raises UnsafeCheckpointError where reading would run code, UsageError for a part that is not there, and
    CheckpointError for everything else that is not a set of named tensors.
    """
    file = open_weight_file(path)
    parts = find_parts(file.tree, path.name)
    chosen = choose_part(parts, weights, path.name)
    stored, ignored = split_tensors(parts[chosen], path.name, file.num_bytes)
    tensors, stripped = strip_wrappers(stored, path.name)
    return Checkpoint(
        path=path,
        format=file.format,
        tensors=tensors,
        file_sha256=file.sha256,
        tensor_digest=tensor_digest(tensors),
        weights=chosen,
        available_weights=tuple(parts),
        stripped=stripped,
        ignored=ignored,
        metadata=file.metadata_of(chosen),
    )
