"""Every operation on the compiled kernels; `cpu_library.available` says whether they are there."""

from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.kernels.copy_blocks.reference import copy_blocks
from vtk.kernels.embedding.cpu import embedding
from vtk.kernels.host_cache import allocate_cache
from vtk.kernels.host_memory import FLOAT32, HostArray, aligned_empty
from vtk.kernels.linear.cpu import linear
from vtk.kernels.packed_weight import pack
from vtk.kernels.paged_attention.cpu import paged_attention
from vtk.kernels.rms_norm.cpu import rms_norm
from vtk.kernels.rope_and_cache.cpu import rope_and_cache
from vtk.kernels.silu_and_mul.cpu import silu_and_mul

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


def array(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same memory; its address will be asked for in every layer."""
    return values.view(HostArray)


def empty(rows: int, columns: int) -> npt.NDArray[np.float32]:
    """See `Ops.empty`."""
    return aligned_empty((rows, columns), FLOAT32)
