"""The loop of the language engine: schedule, run, sample, update; and what callers see of it, as deltas."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vtk.errors import RequestError
from vtk.llm_serving.core.admission import check_fits
from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.prefix_cache import BlockPrefixCache, NoPrefixCache
from vtk.llm_serving.core.request import ExtraKey, FinishReason, Request, Status
from vtk.llm_serving.core.scheduler import Batch, Scheduler
from vtk.llm_serving.core.static_scheduler import StaticScheduler
from vtk.llm_serving.core.step_inputs import build_inputs
from vtk.llm_serving.pooling import MeanPool
from vtk.llm_serving.runner.base import HiddenStates, Logits, ModelRunner
from vtk.llm_serving.sampling.detokenizer import Detokenizer
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.sampler import Sampled, SamplerState, TokenMask, new_state, sample, with_logprobs
from vtk.llm_serving.stats import AbortReason, EngineCounters, EngineSnapshot, Timeline, take_snapshot

_ABORTS = {FinishReason.TIMEOUT: AbortReason.TIMEOUT, FinishReason.ABORT: AbortReason.GRAMMAR}


@dataclass(frozen=True)
class Vocabulary:
    """What the engine needs to know of a tokenizer: the bytes of a token, and which tokens end an output."""

    token_bytes: Callable[[int], bytes]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]


@dataclass(frozen=True)
class Generation:
    """One request as the engine takes it. `mask` makes a fresh grammar state for each of its n sequences.

    embed: the first delta brings the mean of the prompt's last hidden states; every prompt token is computed then.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    queue_timeout: float | None = None
    mask: Callable[[], TokenMask] | None = None
    embed: bool = False


@dataclass(frozen=True)
class Delta:
    """What one step added to sequence `index` of a request.

    stop_reason: the stop string or stop token id that ended it, or why its grammar gave it up. num_cached: prompt
    tokens that were not computed. prompt_logprobs come with the first delta: one a prompt token, None for the first.
    timeline comes with the first token.
    """

    request_id: str
    index: int
    tokens: tuple[Sampled, ...]
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached: int = 0
    prompt_logprobs: tuple[Sampled | None, ...] | None = None
    timeline: Timeline | None = None
    embedding: HiddenStates | None = None


@dataclass(eq=False)
class _Sequence:
    generation: Generation
    index: int
    request: Request
    sampler: SamplerState
    text: Detokenizer
    is_new: bool = True
    sampled: list[Sampled] = field(default_factory=list)
    prompt_logprobs: list[Sampled | None] | None = None
    pooled: MeanPool | None = None


class LLMEngine:
    """Continuous batching over one runner. Not thread-safe: one loop owns it and calls `step` while `has_work`."""

    def __init__(
        self,
        runner: ModelRunner,
        vocabulary: Vocabulary,
        config: SchedulerConfig,
        *,
        enable_prefix_caching: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        pool = BlockPool(runner.num_blocks)
        is_static = config.scheduling == "static"
        caching = enable_prefix_caching and not is_static
        self.cache = BlockPrefixCache(pool, config.block_size) if caching else NoPrefixCache()
        self.scheduler = (StaticScheduler if is_static else Scheduler)(config, pool, self.cache, clock)
        self.counters = EngineCounters()
        self._runner = runner
        self._vocabulary = vocabulary
        self._config = config
        self._clock = clock
        self._sequences: dict[Request, _Sequence] = {}
        self._by_id: dict[str, list[_Sequence]] = {}
        self._computed_at = 0.0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def is_decoding(self) -> bool:
        """Somebody has got a token and waits for the next one."""
        return any(request.output for request in self._sequences)

    @property
    def num_live(self) -> int:
        """Sequences that the engine still holds anything for."""
        return len(self._sequences)

    def check(self, generation: Generation) -> None:
        """Raise RequestError for a request that can never be served. Any thread may call this, at any time."""
        assert generation.mask is not None or generation.params.structured_outputs is None, "a grammar without its mask"
        generation.params.check_ids(self._runner.vocab_size)
        check_fits(len(generation.prompt), self._max_tokens(generation), self._config, self.scheduler.pool.num_blocks)

    def is_live(self, request_id: str) -> bool:
        """Some sequence of the request has not ended."""
        return request_id in self._by_id

    def add(self, generation: Generation) -> None:
        """Queue a request. Raises RequestError for one that can never be served; nothing is kept of it then."""
        if self.is_live(generation.request_id):
            raise RequestError("invalid_request", f"A request with the id '{generation.request_id}' is already live.")
        generation.params.check_ids(self._runner.vocab_size)
        first: Request | None = None
        try:
            for index in range(generation.params.n):
                sequence = self._new_sequence(generation, index, fork_of=first)
                self.scheduler.add(sequence.request)
                first = first or sequence.request
                self._sequences[sequence.request] = sequence
                self._by_id.setdefault(generation.request_id, []).append(sequence)
        except Exception:
            self.abort(generation.request_id, AbortReason.FAILURE)
            raise

    def abort(self, request_id: str, reason: AbortReason = AbortReason.CLIENT) -> bool:
        """Drop a request at any point; its blocks are free when this returns. False if it is not live."""
        sequences = self._by_id.pop(request_id, [])
        for sequence in sequences:
            self.scheduler.abort(sequence.request.request_id)
            del self._sequences[sequence.request]
        self.counters.add_abort(reason, len(sequences))
        return bool(sequences)

    def reset(self) -> None:
        """Drop every request and the prefix cache: after a failed step nobody knows what its blocks hold."""
        for request_id in list(self._by_id):
            self.abort(request_id, AbortReason.FAILURE)
        self.scheduler.update(Batch({}), {})  # takes out whoever timed out in that step
        self.scheduler.pool.forget_all()

    def snapshot(self) -> EngineSnapshot:
        """What it holds and what it did so far. Any thread may call this, at any time."""
        return take_snapshot(self.scheduler, self.counters)

    def step(self) -> list[Delta]:
        """Compute one batch and return what it added."""
        batch = self.scheduler.schedule()
        logits = self._forward(batch)
        tokens = self._sample(logits, batch)
        self.counters.add_step(batch, len(tokens))
        return self._deltas(self.scheduler.update(batch, tokens))

    def _forward(self, batch: Batch) -> Logits:
        every_row = {r for r in batch.num_new if self._sequences[r].prompt_logprobs is not None}
        inputs = build_inputs(batch, self._config.block_size, every_row)
        pools = any(self._sequences[request].pooled for request in batch.num_new)
        hidden = np.empty((batch.num_tokens, self._runner.hidden_size), np.float32) if pools else None
        logits = self._runner.forward(inputs, hidden)
        self._computed_at = self._clock()
        if hidden is not None:
            self._pool(hidden, batch)
        return logits

    def _pool(self, hidden: HiddenStates, batch: Batch) -> None:
        start = 0
        for request, count in batch.num_new.items():
            if (pooled := self._sequences[request].pooled) is not None:
                pooled.add(request.num_computed, hidden[start : start + count])
            start += count

    def _sample(self, logits: Logits, batch: Batch) -> dict[Request, int]:
        """One token for each request whose last known token was computed."""
        sampling = batch.sampling()
        rows = self._last_rows(logits, batch)
        sampled = sample(logits[rows], [self._sequences[request].sampler for request in sampling])
        for request, token in zip(sampling, sampled, strict=True):
            self._sequences[request].sampled.append(token)
        return {request: token.token for request, token in zip(sampling, sampled, strict=True)}

    def _last_rows(self, logits: Logits, batch: Batch) -> list[int]:
        """Which rows of the logits are sampled from; prompt log-probabilities are taken from the others on the way."""
        rows: list[int] = []
        start = 0
        for request, count in batch.num_new.items():
            sequence = self._sequences[request]
            samples = request.num_pending == count
            stop = start + (count if sequence.prompt_logprobs is not None else int(samples))
            if sequence.prompt_logprobs is not None:
                self._keep_prompt_logprobs(sequence, logits[start:stop])
            if samples:
                rows.append(stop - 1)
            start = stop
        return rows

    def _keep_prompt_logprobs(self, sequence: _Sequence, rows: Logits) -> None:
        """Row i of a chunk predicts the token after position num_computed + i."""
        kept, prompt = sequence.prompt_logprobs, sequence.request.prompt
        assert kept is not None
        for offset, row in enumerate(rows):
            following = sequence.request.num_computed + offset + 1
            if following == len(kept) and following < len(prompt):
                kept.append(with_logprobs(row, prompt[following], sequence.generation.params.prompt_logprobs or 0))

    def _deltas(self, changed: Iterable[Request]) -> list[Delta]:
        return [self._delta(self._sequences[request]) for request in changed]

    def _delta(self, sequence: _Sequence) -> Delta:
        request = sequence.request
        tokens, sequence.sampled = tuple(sequence.sampled), []
        failure = None if sequence.sampler.mask is None else sequence.sampler.mask.failure
        if failure is not None:
            self.scheduler.abort(request.request_id)
        text, stop = self._text(sequence, tokens)
        if isinstance(stop, str) and request.status is not Status.FINISHED:
            self.scheduler.abort(request.request_id, FinishReason.STOP)
        reason = FinishReason.STOP if isinstance(stop, str) else request.finish_reason
        if failure is not None:
            reason, stop = FinishReason.ABORT, failure
        if reason in _ABORTS:
            self.counters.add_abort(_ABORTS[reason])
        if request.status is Status.FINISHED:
            self._forget(sequence)
        is_first, sequence.is_new = sequence.is_new, False
        prompt_logprobs = sequence.prompt_logprobs if is_first else None
        return Delta(
            sequence.generation.request_id,
            sequence.index,
            tokens,
            text,
            reason,
            stop,
            request.num_cached or 0,
            None if prompt_logprobs is None else tuple(prompt_logprobs),
            self._timeline(request) if is_first and tokens else None,
            sequence.pooled.mean() if is_first and tokens and sequence.pooled is not None else None,
        )

    def _timeline(self, request: Request) -> Timeline:
        """Of a request that has just got its first token: the step that gave it computed the end of its prompt."""
        assert request.first_scheduled is not None, "sampled before it was scheduled"
        assert request.first_allocated is not None, "sampled without blocks"
        start, allocated = request.first_scheduled, request.first_allocated
        return Timeline(request.arrival, start, allocated, self._computed_at, self._clock())

    def _text(self, sequence: _Sequence, tokens: tuple[Sampled, ...]) -> tuple[str, str | int | None]:
        """The text that the tokens add, and the stop string or stop token that ended it."""
        request, params = sequence.request, sequence.generation.params
        text = ""
        for token in tokens:
            if request.finish_reason is FinishReason.STOP and not params.include_stop_str_in_output:
                is_eos = token.token in self._vocabulary.eos_ids
                return text + sequence.text.finish().text, None if is_eos else token.token
            piece = sequence.text.push(token.token, check_stop=len(request.output) >= params.min_tokens)
            text += piece.text
            if piece.stop is not None:
                return text, piece.stop
        if request.status is Status.FINISHED:
            piece = sequence.text.finish()
            return text + piece.text, piece.stop
        return text, None

    def _forget(self, sequence: _Sequence) -> None:
        del self._sequences[sequence.request]
        siblings = self._by_id[sequence.generation.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._by_id[sequence.generation.request_id]

    def _new_sequence(self, generation: Generation, index: int, fork_of: Request | None) -> _Sequence:
        params = generation.params
        prompt = list(generation.prompt)
        every_token = generation.embed or params.prompt_logprobs is not None
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._vocabulary.eos_ids)
        request = Request(
            request_id=f"{generation.request_id}#{index}",
            prompt=prompt,
            max_tokens=self._max_tokens(generation),
            arrival=self._clock(),
            stop_ids=stop_ids,
            min_tokens=params.min_tokens,
            priority=generation.priority,
            queue_timeout=generation.queue_timeout,
            extra_keys=(ExtraKey("salt", generation.cache_salt),) if generation.cache_salt else (),
            fork_of=None if every_token else fork_of,
            reuse_prefix=not every_token,
        )
        hidden = self._vocabulary.special_ids if params.skip_special_tokens else frozenset[int]()
        mask = generation.mask() if generation.mask is not None else None
        return _Sequence(
            generation,
            index,
            request,
            new_state(params, prompt, request.output, index=index, forbidden=tuple(sorted(stop_ids)), mask=mask),
            Detokenizer(
                lambda token: b"" if token in hidden else self._vocabulary.token_bytes(token),
                params.stop,
                include_stop=params.include_stop_str_in_output,
            ),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
            pooled=MeanPool(self._runner.hidden_size, len(prompt)) if generation.embed else None,
        )

    def _max_tokens(self, generation: Generation) -> int:
        asked = generation.params.max_tokens
        return asked if asked is not None else max(1, self.max_output(len(generation.prompt)))

    def max_output(self, prompt_length: int) -> int:
        """The most tokens that can follow a prompt: the context's end or the pool's, whichever comes first."""
        capacity = self.scheduler.pool.num_blocks * self._config.block_size
        return min(self._config.max_model_len, capacity + 1) - prompt_length
