"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), rotate-half form, and the store into KV blocks."""

from __future__ import annotations

import torch

from vtk.kernels.int8_rounding import round_to_int8
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.rms_norm.reference import rms_norm


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    half = cos.shape[-1]
    first, second = x[..., :half].clone(), x[..., half : 2 * half].clone()
    x[..., :half] = first * cos - second * sin
    x[..., half : 2 * half] = second * cos + first * sin


def _store(
    tensor: torch.Tensor, scales: torch.Tensor | None, block: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """What the slots receive: (n, kv_heads, head_dim); int8 scales are stored on the way."""
    if scales is None:
        return tensor
    values, scales[block, :, offset] = round_to_int8(tensor)
    return values


def rope_and_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: LayerCache[torch.Tensor],
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Rotate query (T, H, D) and key (T, KVH, D) **in place**, then store key and value (T, KVH, D) in the cache.

    All float32; their rows may be slices of one (T, ...) projection. cos, sin: (max_positions, D/2) tables (fewer
    columns rotate only the leading dimensions). positions: (T,) int64. slot_mapping: (T,) int64; a negative slot stores
    nothing. query_norm, key_norm: (D,) weights of an RMS norm per head before the rotation (Qwen3).
    """
    if query_norm is not None:
        query.copy_(rms_norm(query, query_norm, eps))
    if key_norm is not None:
        key.copy_(rms_norm(key, key_norm, eps))
    row_cos, row_sin = cos[positions][:, None], sin[positions][:, None]
    _rotate(query, row_cos, row_sin)
    _rotate(key, row_cos, row_sin)
    stored = slot_mapping >= 0
    block = slot_mapping[stored] // cache.block_size
    offset = slot_mapping[stored] % cache.block_size
    cache.key[block, :, :, offset] = _store(key[stored], cache.key_scales, block, offset).to(cache.key.dtype)
    cache.value[block, :, offset] = _store(value[stored], cache.value_scales, block, offset).to(cache.value.dtype)
