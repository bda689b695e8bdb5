"""Causal attention over paged KV blocks (Kwon et al. 2023, arXiv:2309.06180)."""

from __future__ import annotations

import torch

from vtk.kernels.kv_cache import LayerCache


def _gather(cache: LayerCache, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence's first `length` positions: two (kv_heads, length, head_dim) float32."""
    blocks = table[: -(-length // cache.block_size)].long()
    key = cache.key[blocks].float().transpose(2, 3)
    value = cache.value[blocks].float()
    if cache.key_scales is not None and cache.value_scales is not None:
        key = key * cache.key_scales[blocks][..., None]
        value = value * cache.value_scales[blocks][..., None]
    joined = [tensor.transpose(0, 1).flatten(1, 2)[:, :length] for tensor in (key, value)]
    return joined[0], joined[1]


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """query (n, heads, head_dim): the last n positions of the sequence."""
    count, heads, _ = query.shape
    length = key.shape[1]
    group = heads // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = query.transpose(0, 1) @ key.transpose(1, 2) * scale
    position = torch.arange(length - count, length)
    hidden = torch.arange(length)[None, :] > position[:, None]
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value).transpose(0, 1)


def paged_attention(
    query: torch.Tensor,
    cache: LayerCache,
    cu_seqlens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """query (T, H, D) float32 -> (T, H, D) float32; query head h reads KV head h // (H / kv_heads).

    cu_seqlens: (B + 1,) int32, sequence i owns the rows `cu_seqlens[i]:cu_seqlens[i + 1]`. seq_lens: (B,) int32, its
    tokens with the new ones, which are the last; the row at position p sees positions 0..p. block_tables: (B, longest)
    int32, padded with anything. `query` may be a slice of a wider projection.
    """
    result = torch.empty(query.shape) if out is None else out
    bounds = cu_seqlens.tolist()
    for i, length in enumerate(seq_lens.tolist()):
        rows = slice(bounds[i], bounds[i + 1])
        if rows.start == rows.stop:
            continue
        key, value = _gather(cache, block_tables[i], length)
        result[rows] = _attend(query[rows], key, value, scale)
    return result
