"""The paged key-value memory of one layer in the memory of the host, for the compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.kernels.host_memory import untouched_zeros
from vtk.kernels.kv_cache import CPU_KV_DTYPES, KvDtype, LayerCache, check_kv_dtype


def allocate_cache(
    num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: KvDtype = "float32"
) -> LayerCache[npt.NDArray[Any]]:
    """Memory that is taken block by block, when a block is first written. ValueError for types of a GPU."""
    check_kv_dtype(dtype, CPU_KV_DTYPES)
    key = untouched_zeros((num_blocks, kv_heads, head_dim, block_size), dtype)
    value = untouched_zeros((num_blocks, kv_heads, block_size, head_dim), dtype)
    if dtype != "int8":
        return LayerCache(key, value)
    scales = untouched_zeros((2, num_blocks, kv_heads, block_size), np.float32)
    return LayerCache(key, value, scales[0], scales[1])
