"""Causal attention over paged KV blocks (Kwon et al. 2023, arXiv:2309.06180)."""

from __future__ import annotations

import torch

from vtk.kernels.kv_cache import LayerCache


def _gather(
    cache: LayerCache[torch.Tensor], table: torch.Tensor, length: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence's first `length` positions: two (kv_heads, length, head_dim)."""
    blocks = table[: -(-length // cache.block_size)].long()
    key = cache.key[blocks].to(dtype).transpose(2, 3)
    value = cache.value[blocks].to(dtype)
    if cache.key_scales is not None and cache.value_scales is not None:
        key = key * cache.key_scales[blocks][..., None]
        value = value * cache.value_scales[blocks][..., None]
    joined = [tensor.transpose(0, 1).flatten(1, 2)[:, :length] for tensor in (key, value)]
    return joined[0], joined[1]


def _hidden(count: int, length: int, window: int | None, causal: bool) -> torch.Tensor:
    """(count, length): which positions the last `count` ones may not see."""
    position, other = torch.arange(length - count, length)[:, None], torch.arange(length)[None, :]
    hidden = (other > position) & causal
    return hidden if window is None else hidden | (other <= position - window)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """query (n, heads, head_dim): the last n positions of the sequence. Returns its result and (n, heads) LSE."""
    group = query.shape[1] // key.shape[0]
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    scores = (query.transpose(0, 1) @ key.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(0, 1), scores.logsumexp(-1).T


def paged_attention(
    query: torch.Tensor,
    cache: LayerCache[torch.Tensor],
    cu_seqlens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    *,
    window: int | None = None,
    causal: bool = True,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """query (T, H, D) -> (T, H, D) of its type; query head h reads KV head h // (H / kv_heads).

    cu_seqlens: (B + 1,) int32, sequence i owns the rows `cu_seqlens[i]:cu_seqlens[i + 1]`. seq_lens: (B,) int32, its
    tokens with the new ones, which are the last; the row at position p sees positions 0..p, with `window` only the
    last `window` of them, and without `causal` those after it too. block_tables: (B, longest) int32, padded with
    anything. `query` may be a slice of a wider projection. `lse`, if given, is filled with the logarithm of the sum of
    the exponentials of each row's scores, (T, H) float32: what `merge_attention_states` needs. A row of a sequence
    without tokens is zero and its `lse` is -inf.

    Computes in float32, in float64 for a float64 query.
    """
    result = torch.empty(query.shape, dtype=query.dtype) if out is None else out
    dtype = torch.promote_types(query.dtype, torch.float32)
    bounds = cu_seqlens.tolist()
    for i, length in enumerate(seq_lens.tolist()):
        rows = slice(bounds[i], bounds[i + 1])
        if rows.start == rows.stop:
            continue
        key, value = _gather(cache, block_tables[i], length, dtype)
        hidden = _hidden(rows.stop - rows.start, length, window, causal)
        result[rows], row_lse = _attend(query[rows].to(dtype), key, value, scale, hidden)
        if lse is not None:
            lse[rows] = row_lse
    return result
