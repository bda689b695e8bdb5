"""Reading numbers off the shapes of a detector's tensors, with one clear error where they do not tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import torch

from vtk.errors import CheckpointError

Tensors: TypeAlias = Mapping[str, torch.Tensor]

_QUERY_PROJECTION = re.compile(r"(.*\.self_attn)\.q_proj\.(weight|bias)")


def tensor(tensors: Tensors, key: str) -> torch.Tensor:
    """Raises CheckpointError when there is none of that name."""
    if key not in tensors:
        raise CheckpointError(f"The checkpoint lacks '{key}', which its model cannot do without.")
    return tensors[key]


def matrix(tensors: Tensors, key: str) -> torch.Tensor:
    """A weight of two axes or more."""
    value = tensor(tensors, key)
    if value.ndim < 2:
        raise CheckpointError(f"'{key}' must be a weight matrix or kernel, its shape is {tuple(value.shape)}.")
    return value


def rows(tensors: Tensors, key: str) -> int:
    """Output features of a weight."""
    return matrix(tensors, key).shape[0]


def columns(tensors: Tensors, key: str) -> int:
    """Input features of a weight."""
    return matrix(tensors, key).shape[1]


def count(tensors: Tensors, pattern: str) -> int:
    """How many different first groups of `pattern` there are among the names."""
    matches = (re.fullmatch(pattern, key) for key in tensors)
    found = len({match[1] for match in matches if match})
    if not found:
        raise CheckpointError(f"No tensor of the checkpoint matches '{pattern}', which its model cannot do without.")
    return found


def join_projections(named: Tensors) -> dict[str, torch.Tensor]:
    """Query, key and value projections of each self-attention as one tensor, in this order.

    Raises CheckpointError where one of them is missing.
    """
    joined = dict(named)
    for name in named:
        if match := _QUERY_PROJECTION.fullmatch(name):
            stem, kind = match.groups()
            parts = [joined.pop(f"{stem}.{letter}_proj.{kind}", None) for letter in "qkv"]
            if any(part is None for part in parts):
                raise CheckpointError(f"The checkpoint lacks a part of '{stem}', which has q, k and v projections.")
            joined[f"{stem}.in_proj_{kind}"] = torch.cat([part for part in parts if part is not None])
    return joined


def shared_number(tensors: Tensors, name: str) -> float:
    """One decoder parameter stored under two names. The official loader copies the inner one last, so that it wins."""
    inner = f"decoder.decoder.{name}"
    key = inner if inner in tensors else f"decoder.{name}"
    value = tensor(tensors, key)
    if value.numel() != 1:
        raise CheckpointError(f"'{key}' must hold one number, its shape is {tuple(value.shape)}.")
    return float(value.item())
