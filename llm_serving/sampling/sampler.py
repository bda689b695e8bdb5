"""One token from one row of logits.

Rows are sampled one by one, each from a random stream of its own: a request's tokens never depend on who else is in the
batch. Greedy rows without penalties, the common case, take one argmax over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vtk.llm_serving.sampling.params import SamplingParams

Row = npt.NDArray[np.float32]
NUM_CANDIDATES = 256
NOT_NUMBERS = "the model's logits are not numbers: its weights are damaged, or what it computed overflowed"


class TokenMask(Protocol):
    """A grammar: which tokens may come next, told about every token that came.

    failure says why the output cannot go on and is not what the grammar wants; it is None as long as all is well.
    """

    failure: str | None

    def apply(self, row: Row) -> None:
        """Set the logits of forbidden tokens to -inf, in place; at least one token stays allowed."""
        ...

    def accept(self, token: int) -> None:
        """Advance past a sampled token."""
        ...


@dataclass(frozen=True)
class Sampled:
    """A token, and where asked the log-probabilities (of the unmodified logits): its own, its rank, the best ones."""

    token: int
    logprob: float | None = None
    rank: int | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class SamplerState:
    """What one sequence carries from step to step.

    forbidden: ids masked until `min_tokens` are out. failure: why no token can be drawn for it any more.
    """

    params: SamplingParams
    generator: np.random.Generator
    prompt: Sequence[int]
    output: Sequence[int]
    forbidden: tuple[int, ...] = ()
    mask: TokenMask | None = None
    counts: dict[int, int] = field(default_factory=dict)
    num_counted: int = 0
    failure: str | None = None

    @property
    def is_plain_greedy(self) -> bool:
        """Nothing but the argmax of the row is wanted."""
        params = self.params
        changes = params.reads_history or params.logit_bias or self.mask is not None or self._is_held_open
        return params.is_greedy and params.logprobs is None and not changes

    @property
    def _is_held_open(self) -> bool:
        return bool(self.forbidden) and len(self.output) < self.params.min_tokens

    def adjust(self, row: Row) -> Row:
        """A copy of the row with bias, penalties and masks applied."""
        row = row.copy()
        params = self.params
        for token, bias in params.logit_bias.items():
            row[token] += bias
        if params.reads_history:
            self._penalize(row)
        if self._is_held_open:
            row[list(self.forbidden)] = -np.inf
        if self.mask is not None:
            self.mask.apply(row)
            if row.max() == -np.inf:  # a bias forbids all that the grammar allows, and the grammar has the last word
                row[:] = 0
                self.mask.apply(row)
        return row

    def _penalize(self, row: Row) -> None:
        params = self.params
        for token in self.output[self.num_counted :]:
            self.counts[token] = self.counts.get(token, 0) + 1
        self.num_counted = len(self.output)
        if params.repetition_penalty != 1:
            seen = np.fromiter({*self.prompt, *self.counts}, np.int64)
            values = row[seen]
            row[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        if self.counts:
            tokens = np.fromiter(self.counts.keys(), np.int64)
            times = np.fromiter(self.counts.values(), np.float32)
            row[tokens] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * times


def new_state(
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    index: int = 0,
    forbidden: tuple[int, ...] = (),
    mask: TokenMask | None = None,
) -> SamplerState:
    """State of sequence `index` among the n of a request; each has a stream of its own under one seed."""
    entropy = None if params.seed is None else (int(params.seed) % 2**64, index)
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
    return SamplerState(params, generator, prompt, output, forbidden, mask)


def sample(logits: npt.NDArray[np.float32], states: Sequence[SamplerState]) -> list[Sampled]:
    """One token per row of `logits` (S, vocab_size), for the S sequences of `states`."""
    plain = [i for i, state in enumerate(states) if state.is_plain_greedy]
    best = logits.argmax(axis=1) if plain else ()
    result: dict[int, Sampled] = {i: Sampled(int(best[i])) for i in plain}
    for i in plain:
        _check_best(logits[i, best[i]], states[i])
    for i, state in enumerate(states):
        if i not in result:
            result[i] = _sample_row(logits[i], state)
    return [result[i] for i in range(len(states))]


def _sample_row(logits: Row, state: SamplerState) -> Sampled:
    row = state.adjust(logits)
    _check_best(row.max(), state)
    if state.failure is not None:
        return Sampled(0)
    token = int(row.argmax()) if state.params.is_greedy else _draw(row, state.params, state.generator)
    if state.mask is not None:
        state.mask.accept(token)
    if state.params.logprobs is None:
        return Sampled(token)
    return with_logprobs(logits, token, state.params.logprobs)


def _check_best(logit: np.float32, state: SamplerState) -> None:
    if not np.isfinite(logit):  # a maximum is no number as soon as one of its numbers is none
        state.failure = NOT_NUMBERS


def _draw(row: Row, params: SamplingParams, generator: np.random.Generator) -> int:
    """Inverse transform over the kept tokens, likeliest first: one uniform number a token."""
    order, probabilities = _kept(row / np.float32(params.temperature), params)
    cumulative = np.cumsum(probabilities)
    index = int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))
    return int(order[min(index, len(order) - 1)])


def _kept(row: Row, params: SamplingParams) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Token ids by falling probability after top-k, top-p and min-p, with their (unnormalized) probabilities.

    As in vLLM, top-p is measured among what top-k left, and min-p against the likeliest token.
    """
    weights = np.exp(row.astype(np.float64) - float(row.max()))
    top_k = params.top_k if 0 < params.top_k < len(row) else len(row)
    order = _likeliest(weights, top_k, params.top_p)
    kept = weights[order]
    if params.top_p < 1:
        total = kept.sum() if top_k < len(row) else weights.sum()
        before = np.cumsum(kept) - kept
        kept = kept[before < params.top_p * total]
    if params.min_p > 0:
        kept = kept[kept >= params.min_p]
    return order[: len(kept)], kept


def _likeliest(weights: npt.NDArray[np.float64], top_k: int, top_p: float) -> npt.NDArray[np.int64]:
    """Ids of the `top_k` largest weights, sorted; fewer where a partial sort already covers `top_p` of all."""
    for size in (min(NUM_CANDIDATES, top_k) if top_p < 1 else top_k, top_k):
        ids = np.argpartition(-weights, size - 1)[:size] if size < len(weights) else np.arange(len(weights))
        ids = ids[np.lexsort((ids, -weights[ids]))]
        if size == top_k or (top_k == len(weights) and weights[ids].sum() >= top_p * weights.sum()):
            break
    return ids


def with_logprobs(logits: Row, token: int, count: int) -> Sampled:
    """The token with its log-probability, its rank (1 = likeliest) and the `count` likeliest tokens."""
    shifted = logits.astype(np.float64) - float(logits.max())
    logprobs = shifted - np.log(np.exp(shifted).sum())
    rank = int((logits > logits[token]).sum()) + 1
    best = np.argsort(-logprobs, kind="stable")[:count] if count else np.empty(0, np.int64)
    return Sampled(token, float(logprobs[token]), rank, tuple((int(i), float(logprobs[i])) for i in best))
