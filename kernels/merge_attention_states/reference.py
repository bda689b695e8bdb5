"""Joins attention over two disjoint parts of the keys (Juravsky et al. 2024, arXiv:2402.05099, section 3.1)."""

from __future__ import annotations

import torch


def merge_attention_states(
    first: torch.Tensor,
    first_lse: torch.Tensor,
    second: torch.Tensor,
    second_lse: torch.Tensor,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> torch.Tensor:
    """Two results (T, H, D) over disjoint keys and their (T, H) log-sum-exp -> the result over all keys, (T, H, D).

    A part that saw no key has an LSE of -inf and no weight, whatever it holds; two such parts give zeros. `lse`, if
    given, is filled with the LSE over all keys, float32. `out` may be `first` or `second`.
    """
    states = torch.stack([first, second]).to(torch.promote_types(first.dtype, torch.float32))
    parts = torch.stack([first_lse, second_lse]).to(states.dtype)
    joined = parts.logsumexp(0)
    weight = (parts - joined.masked_fill(joined == -torch.inf, 0)).exp()[..., None]
    merged = (states * weight).masked_fill(weight == 0, 0).sum(0)
    result = torch.empty_like(first) if out is None else out
    result.copy_(merged)
    if lse is not None:
        lse.copy_(joined)
    return result
