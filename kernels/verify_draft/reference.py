"""Speculative decoding's check of a draft (Leviathan et al. 2023, arXiv:2211.17192)."""

from __future__ import annotations

import torch


def verify_draft(drafts: torch.Tensor, sampled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """drafts (B, K) and sampled (B, K + 1), both int64 -> tokens (B, K + 1) int64, and how many are valid, (B,) int32.

    `sampled[:, i]` is what the model draws after the first i tokens of the draft. Kept are the sampled tokens up to and
    with the first that the draft did not foresee, 1 to K + 1 of them; -1 follows. A draft shorter than K ends with -1.

    The output is that of decoding without drafts, greedy or not: each token is the model's own draw from the same
    stream. For a drafter that names one token this accepts as often as rejection sampling does, with the token's
    probability.
    """
    agrees = torch.nn.functional.pad(drafts == sampled[:, :-1], (0, 1))
    counts = agrees.int().cumprod(1).sum(1) + 1
    kept = torch.arange(sampled.shape[1], device=sampled.device) < counts[:, None]
    return torch.where(kept, sampled, -1), counts.int()
