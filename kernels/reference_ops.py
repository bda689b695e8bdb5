"""Every operation in plain torch: the definitions, and what runs where no library was compiled."""

from typing import Any

import numpy.typing as npt
import torch

from vtk.kernels.copy_blocks.reference import copy_blocks
from vtk.kernels.embedding.reference import embedding
from vtk.kernels.linear.reference import linear
from vtk.kernels.paged_attention.reference import paged_attention
from vtk.kernels.rms_norm.reference import rms_norm
from vtk.kernels.rope_and_cache.reference import rope_and_cache
from vtk.kernels.silu_and_mul.reference import silu_and_mul
from vtk.kernels.torch_cache import allocate_cache
from vtk.kernels.weights import StoredWeight

__all__ = [
    "allocate_cache",
    "array",
    "copy_blocks",
    "embedding",
    "empty",
    "linear",
    "pack",
    "paged_attention",
    "rms_norm",
    "rope_and_cache",
    "silu_and_mul",
]


def pack(weight: StoredWeight) -> StoredWeight:
    """The weight itself."""
    return weight


def array(values: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor over the same memory."""
    return torch.from_numpy(values)


def empty(rows: int, columns: int) -> torch.Tensor:
    """See `Ops.empty`."""
    return torch.empty(rows, columns)
