"""The compiled rotary embedding and KV store."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.kernels.cpu_checks import Floats, is_heads, mismatch, pointer, require, row_stride
from vtk.kernels.cpu_library import library
from vtk.kernels.host_memory import address
from vtk.kernels.kv_cache import LayerCache

MAX_HEAD_DIM = 256


def rope_and_cache(
    query: Floats,
    key: Floats,
    value: Floats,
    cos: Floats,
    sin: Floats,
    positions: npt.NDArray[np.int64],
    slot_mapping: npt.NDArray[np.int64],
    cache: LayerCache[npt.NDArray[Any]],
    query_norm: Floats | None = None,
    key_norm: Floats | None = None,
    eps: float = 1e-6,
) -> None:
    """As `reference.rope_and_cache`; head_dim is at most 256, `positions` lie within the tables, slots in the cache.

    Floor at 32 rows of 9 + 3 heads of 64: 240 KB read and written, 0.1 MFLOP.
    """
    rows, heads, head_dim = query.shape
    kv_heads = cache.kv_heads
    require(head_dim == cache.head_dim <= MAX_HEAD_DIM and is_heads(query, heads, head_dim), "(T, H, D) queries", query)
    fits = key.shape == value.shape == (rows, kv_heads, head_dim)
    fits = fits and is_heads(key, kv_heads, head_dim) and is_heads(value, kv_heads, head_dim)
    if not fits:
        raise mismatch(f"keys and values of ({rows}, {kv_heads}, {head_dim}) float32", key, value)
    tables = (
        cos.shape == sin.shape and cos.flags.c_contiguous and sin.flags.c_contiguous and 2 * cos.shape[1] <= head_dim
    )
    if not tables:
        raise mismatch(f"(positions, <= {head_dim // 2}) tables", cos, sin)
    places = positions.shape == slot_mapping.shape == (rows,) and positions.dtype == slot_mapping.dtype == np.int64
    if not places:
        raise mismatch(f"({rows},) int64 positions and slots", positions, slot_mapping)
    for norm in (query_norm, key_norm):
        if norm is not None and norm.shape != (head_dim,):
            raise mismatch(f"a norm of ({head_dim},)", norm)
    library().vtk_rope_and_cache(
        address(query),
        row_stride(query),
        address(key),
        row_stride(key),
        address(value),
        row_stride(value),
        rows,
        heads,
        address(cos),
        address(sin),
        cos.shape[1],
        address(positions),
        address(slot_mapping),
        pointer(query_norm),
        pointer(key_norm),
        eps,
        kv_heads,
        head_dim,
        cache.block_size,
        *cache.host_arguments,
    )
