"""One token from each row of logits, as the largest of logit plus Gumbel noise (Gumbel 1954; Maddison et al. 2014)."""

from __future__ import annotations

import torch

PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    steps: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits (S, V) of any float type -> tokens (S,) int64, and their log-probabilities (S,) float32.

    All others are (S,). temperature: float32, 0 takes the largest logit, the first of equal ones. top_k: int32, below 1
    for all. top_p: float32 in 0..1 (0 excluded), the share of what top_k left that the likeliest tokens reach together;
    min_p: float32 in 0..1, against the likeliest token. Whatever equals the last token that top_k or top_p keep is kept
    too. seeds, steps: int64; the noise of a token is a function of seed, step (0 for the first token of a stream, below
    2^32) and id, so a row draws the same token in any batch. Log-probabilities are those of the unmodified logits.
    """
    values = logits if logits.dtype == torch.float64 else logits.float()
    is_greedy = temperature == 0
    shifted = values - values.amax(1, keepdim=True)
    scaled = shifted / torch.where(is_greedy, 1, temperature)[:, None]
    noise = gumbel_noise(seeds, steps, logits.shape[1], values.dtype)
    scores = (scaled + noise).masked_fill(scaled < _threshold(scaled, top_k, top_p, min_p), -torch.inf)
    tokens = torch.where(is_greedy, values.argmax(1), scores.argmax(1))
    return tokens, values.log_softmax(1).gather(1, tokens[:, None])[:, 0].float()


def _threshold(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """The smallest scaled logit that every filter keeps: (S, 1)."""
    descending = scaled.sort(dim=1, descending=True).values
    count = torch.where(top_k < 1, scaled.shape[1], top_k.clamp(max=scaled.shape[1])).long()
    kth = descending.gather(1, count[:, None] - 1)
    weights = descending.exp().masked_fill(descending < kth, 0)
    before = weights.cumsum(1) - weights
    reached = before < top_p[:, None] * weights.sum(1, keepdim=True)
    last = descending.gather(1, reached.sum(1, keepdim=True).clamp(min=1) - 1)
    return torch.maximum(torch.maximum(kth, last), min_p.to(scaled.dtype).log()[:, None])


def gumbel_noise(seeds: torch.Tensor, steps: torch.Tensor, vocab_size: int, dtype: torch.dtype) -> torch.Tensor:
    """-log(-log(uniform)) of one random word for each (seed, step, token): (S, vocab_size)."""
    words = philox(seeds[:, None], torch.arange(vocab_size, device=seeds.device)[None, :], steps[:, None])
    # The word counts from 0 upward where the noise is large: the tail is resolved to 2^-32.
    uniform = ((words.to(dtype) + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -(-torch.log1p(-uniform)).log()


def philox(seeds: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The first word, 0..2^32-1, of Philox4x32-10 (Salmon et al. 2011) with the counter (first, second, 0, 0)."""
    key = [seeds & WORD, (seeds >> 32) & WORD]
    zero = seeds * 0
    counter = [(first & WORD) + zero, (second & WORD) + zero, zero, zero]
    for _ in range(10):
        # int64 products wrap, and their 64 bits are those of the unsigned ones.
        products = [counter[0] * PHILOX_MULTIPLIERS[0], counter[2] * PHILOX_MULTIPLIERS[1]]
        high, low = ([(product >> shift) & WORD for product in products] for shift in (32, 0))
        counter = [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]
        key = [(word + increment) & WORD for word, increment in zip(key, PHILOX_INCREMENTS, strict=True)]
    result: torch.Tensor = counter[0]
    return result
