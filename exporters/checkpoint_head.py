"""A linear classifier from a file of its own, put beside the tensors of the backbone that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.checkpoint_digest import tensor_digest

HEAD = "linear_head."
# The official release stores the layer alone; its trainer, inside a module that calls it `linear`.
_STORED = ("", "linear.", HEAD)


def join_head(checkpoint: Checkpoint, head: str | None) -> Checkpoint:
    """The checkpoint with `linear_head.weight` (C, F) and `linear_head.bias` (C,) from the file `head`; None: as it is.

    Raises UsageError where the checkpoint has a head of its own, and CheckpointError where the file holds anything else
    than one linear layer.
    """
    if head is None:
        return checkpoint
    if any(name.startswith(HEAD) for name in checkpoint.tensors):
        raise UsageError(f"{checkpoint.path.name} has a linear head of its own.", hint="Leave out --head.")
    found = read_checkpoint(Path(head))
    tensors = {**checkpoint.tensors, **_linear(found.tensors, found.path.name)}
    return replace(checkpoint, tensors=tensors, tensor_digest=tensor_digest(tensors))


def _linear(tensors: Mapping[str, torch.Tensor], source: str) -> dict[str, torch.Tensor]:
    for prefix in _STORED:
        if tensors.keys() == {f"{prefix}weight", f"{prefix}bias"}:
            return {HEAD + name.removeprefix(prefix): value for name, value in tensors.items()}
    shown = ", ".join(sorted(tensors)[:4])
    raise CheckpointError(
        f"{source} is not one linear layer: expected the tensors weight and bias alone, it holds {shown}.",
        hint="Of several trained classifiers, save the one to use: torch.save(classifier.state_dict(), path).",
    )
