"""The loop of the language engine: schedule, run, sample, update; and what callers see of it, as deltas."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from vtk.errors import RequestError
from vtk.llm_serving.core.admission import check_fits
from vtk.llm_serving.core.batch import Batch
from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.prefix_cache import BlockPrefixCache, NoPrefixCache
from vtk.llm_serving.core.request import ExtraKey, FinishReason, Request
from vtk.llm_serving.core.scheduler import Scheduler
from vtk.llm_serving.core.static_scheduler import StaticScheduler
from vtk.llm_serving.core.step_inputs import build_inputs
from vtk.llm_serving.generation import Delta, Generation, Vocabulary
from vtk.llm_serving.live_sequence import LiveSequence
from vtk.llm_serving.runner.base import HiddenStates, Logits, ModelRunner
from vtk.llm_serving.sampling.sampler import sample
from vtk.llm_serving.stats import AbortReason, EngineCounters, EngineSnapshot, Timeline, take_snapshot

__all__ = ["Delta", "Generation", "LLMEngine", "Vocabulary"]

_ABORTS = {FinishReason.TIMEOUT: AbortReason.TIMEOUT, FinishReason.ABORT: AbortReason.GRAMMAR}


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
        self._sequences: dict[Request, LiveSequence] = {}
        self._by_id: dict[str, list[LiveSequence]] = {}
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
                request = self._new_request(generation, index, fork_of=first)
                sequence = LiveSequence(generation, index, request, self._vocabulary, self._runner.hidden_size)
                self.scheduler.add(request)
                first = first or request
                self._sequences[request] = sequence
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
        changed = self.scheduler.update(batch, tokens)
        return [self._delta(self._sequences[request]) for request in changed]

    def _forward(self, batch: Batch) -> Logits:
        live = [self._sequences[request] for request in batch.num_new]
        every_row = {sequence.request for sequence in live if sequence.wants_every_row}
        inputs = build_inputs(batch, self._config.block_size, every_row)
        pools = any(sequence.wants_hidden for sequence in live)
        hidden = np.empty((batch.num_tokens, self._runner.hidden_size), np.float32) if pools else None
        logits = self._runner.forward(inputs, hidden)
        self._computed_at = self._clock()
        if hidden is not None:
            self._hand_out(hidden, batch)
        return logits

    def _hand_out(self, hidden: HiddenStates, batch: Batch) -> None:
        start = 0
        for request, count in batch.num_new.items():
            self._sequences[request].take_hidden(hidden[start : start + count])
            start += count

    def _sample(self, logits: Logits, batch: Batch) -> dict[Request, int]:
        """One token for each request whose last known token was computed."""
        sampling = batch.sampling()
        rows = self._last_rows(logits, batch)
        wanted = logits if len(rows) == len(logits) else logits[rows]
        sampled = sample(wanted, [self._sequences[request].sampler for request in sampling])
        for request, token in zip(sampling, sampled, strict=True):
            self._sequences[request].take_token(token)
        return {request: token.token for request, token in zip(sampling, sampled, strict=True)}

    def _last_rows(self, logits: Logits, batch: Batch) -> list[int]:
        """Which rows of the logits are sampled from; every sequence is shown its own on the way."""
        rows: list[int] = []
        start = 0
        for request, count in batch.num_new.items():
            sequence = self._sequences[request]
            samples = request.num_pending == count
            stop = start + (count if sequence.wants_every_row else int(samples))
            sequence.take_logits(logits[start:stop])
            if samples:
                rows.append(stop - 1)
            start = stop
        return rows

    def _delta(self, sequence: LiveSequence) -> Delta:
        if sequence.failure is not None:
            self.scheduler.abort(sequence.request.request_id)
        delta = sequence.take_delta(self._timeline(sequence.request) if sequence.has_first_token else None)
        if delta.finish_reason is not None:
            self._end(sequence, delta.finish_reason)
        return delta

    def _timeline(self, request: Request) -> Timeline:
        """Of a request that has just got its first token: the step that gave it computed the end of its prompt."""
        assert request.first_scheduled is not None, "sampled before it was scheduled"
        assert request.first_allocated is not None, "sampled without blocks"
        start, allocated = request.first_scheduled, request.first_allocated
        return Timeline(request.arrival, start, allocated, self._computed_at, self._clock())

    def _end(self, sequence: LiveSequence, reason: FinishReason) -> None:
        self.scheduler.abort(sequence.request.request_id, reason)  # only what a stop string ended is still live there
        if reason in _ABORTS:
            self.counters.add_abort(_ABORTS[reason])
        del self._sequences[sequence.request]
        siblings = self._by_id[sequence.generation.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._by_id[sequence.generation.request_id]

    def _new_request(self, generation: Generation, index: int, fork_of: Request | None) -> Request:
        params = generation.params
        every_token = generation.embed or params.prompt_logprobs is not None
        eos_ids = frozenset[int]() if params.ignore_eos else self._vocabulary.eos_ids
        return Request(
            request_id=f"{generation.request_id}#{index}",
            prompt=list(generation.prompt),
            max_tokens=self._max_tokens(generation),
            arrival=self._clock(),
            stop_ids=frozenset(params.stop_token_ids) | eos_ids,
            min_tokens=params.min_tokens,
            priority=generation.priority,
            queue_timeout=generation.queue_timeout,
            extra_keys=(ExtraKey("salt", generation.cache_salt),) if generation.cache_salt else (),
            fork_of=None if every_token else fork_of,
            reuse_prefix=not every_token,
        )

    def _max_tokens(self, generation: Generation) -> int:
        asked = generation.params.max_tokens
        return asked if asked is not None else max(1, self.max_output(len(generation.prompt)))

    def max_output(self, prompt_length: int) -> int:
        """The most tokens that can follow a prompt: the context's end or the pool's, whichever comes first."""
        capacity = self.scheduler.pool.num_blocks * self._config.block_size
        return min(self._config.max_model_len, capacity + 1) - prompt_length
