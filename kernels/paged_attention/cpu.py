"""The compiled paged attention."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.kernels.cpu_checks import Floats, is_heads, output, require, row_stride
from vtk.kernels.cpu_library import library
from vtk.kernels.host_memory import address
from vtk.kernels.kv_cache import LayerCache

Ints: TypeAlias = npt.NDArray[np.int32]

MAX_HEAD_DIM = 256


def paged_attention(
    query: Floats,
    cache: LayerCache[npt.NDArray[Any]],
    cu_seqlens: Ints,
    seq_lens: Ints,
    block_tables: Ints,
    scale: float,
    out: Floats | None = None,
) -> Floats:
    """As `reference.paged_attention`; head_dim is at most 256.

    Keys are taken in spans of 128 in ascending position with an online softmax, and every row sums over exactly the
    keys that it sees: its bits depend neither on the other rows nor on how the prompt was cut into chunks.
    Blocks of a multiple of 16 positions and heads of a multiple of 16 are read in place, others copied.

    Floor of decode at batch 32, context 256, 9 + 3 heads of 64, one layer: 12.6 MB of float32 KV (half in float16, a
    quarter in int8) and 19 MFLOP.
    """
    rows, heads, head_dim = query.shape
    shapes = head_dim == cache.head_dim <= MAX_HEAD_DIM and heads % cache.kv_heads == 0
    require(shapes and is_heads(query, heads, head_dim), "(T, H, D) queries that fit the cache", query, cache.value)
    batch = len(seq_lens)
    metadata = (cu_seqlens, seq_lens, block_tables)
    fits = all(array.dtype == np.int32 and array.flags.c_contiguous for array in metadata)
    fits = fits and cu_seqlens.shape == (batch + 1,) and block_tables.shape[:1] == (batch,)
    require(fits, "(B + 1,), (B,) and (B, blocks) contiguous int32", *metadata)
    result = output(out, rows, heads, head_dim)
    library().vtk_paged_attention(
        address(query),
        row_stride(query),
        heads,
        cache.kv_heads,
        head_dim,
        cache.block_size,
        *cache.host_arguments,
        batch,
        address(cu_seqlens),
        address(seq_lens),
        address(block_tables),
        block_tables.shape[1],
        scale,
        address(result),
    )
    return result
