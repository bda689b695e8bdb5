"""Every operation on the compiled kernels; `cpu_library.available` says whether they are there."""

from vtk.kernels.copy_blocks.reference import copy_blocks
from vtk.kernels.embedding.cpu import embedding
from vtk.kernels.linear.cpu import linear
from vtk.kernels.packed_weight import pack
from vtk.kernels.paged_attention.cpu import paged_attention
from vtk.kernels.rms_norm.cpu import rms_norm
from vtk.kernels.rope_and_cache.cpu import rope_and_cache
from vtk.kernels.silu_and_mul.cpu import silu_and_mul

__all__ = [
    "copy_blocks",
    "embedding",
    "linear",
    "pack",
    "paged_attention",
    "rms_norm",
    "rope_and_cache",
    "silu_and_mul",
]
