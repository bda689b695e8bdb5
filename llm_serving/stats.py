"""What an engine tells of itself: counters that it keeps while it runs, and frozen snapshots for whoever reports them.

The engine knows nothing of its readers. They ask for a snapshot when they want one, from any thread; a step pays for a
few additions and never for a reader. Counters only grow over the life of an engine.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtk.llm_serving.core.batch import Batch
    from vtk.llm_serving.core.prefix_cache import PrefixStats
    from vtk.llm_serving.core.scheduler import Scheduler

# Upper bounds (inclusive) of vLLM's histogram of tokens in a step, and of the sequences in one.
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
STEP_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class AbortReason(Enum):
    """Why a sequence was dropped before its end."""

    CLIENT = "client"
    TIMEOUT = "timeout"
    GRAMMAR = "grammar"
    FAILURE = "failure"


@dataclass(frozen=True)
class Timeline:
    """Moments of one sequence until its first token, in seconds of the engine's clock; each is set once.

    queued: the engine took it. scheduled: its first admission began. allocated: it has its blocks. computed: the step
    that computed the end of its prompt left the runner. sampled: its first token is known. Preemption and recompute
    change none of them.
    """

    queued: float
    scheduled: float
    allocated: float
    computed: float
    sampled: float


@dataclass(frozen=True)
class Distribution:
    """How many integers were at most `bounds[i]` and above the bound before it; the last count has no bound."""

    bounds: tuple[int, ...]
    counts: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class StepCounts:
    """Sums over all steps so far. prefill_tokens include what is computed again after a preemption.

    tokens and sequences: what single steps held; their totals are sums over the steps.
    """

    prefill_tokens: int
    decode_tokens: int
    sampled_tokens: int
    tokens: Distribution
    sequences: Distribution
    aborts: Mapping[AbortReason, int]

    @property
    def num_steps(self) -> int:
        return sum(self.tokens.counts)


@dataclass(frozen=True)
class EngineSnapshot:
    """One engine at one moment. kv_usage: share of the blocks that some sequence refers to, 0..1."""

    num_running: int
    num_waiting: int
    max_num_seqs: int
    kv_usage: float
    num_blocks: int
    block_size: int
    num_preemptions: int
    num_evictions: int
    steps: StepCounts
    prefix: PrefixStats

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens admitted, computed or not; what a preemption makes known again is not counted again."""
        return self.prefix.queries + self.prefix.bypassed


class EngineCounters:
    """The counters of one engine, written by the thread that steps it and read by any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._prefill_tokens = 0
        self._decode_tokens = 0
        self._sampled_tokens = 0
        self._sequences = 0
        self._by_tokens = [0] * (len(STEP_TOKENS) + 1)
        self._by_sequences = [0] * (len(STEP_SEQUENCES) + 1)
        self._aborts = dict.fromkeys(AbortReason, 0)

    def add_step(self, batch: Batch, num_sampled: int) -> None:
        """Count a step; one that computed nothing is none."""
        num_tokens, num_sequences = batch.num_tokens, len(batch.num_new)
        if not num_tokens:
            return
        with self._lock:
            self._prefill_tokens += num_tokens - batch.num_decodes
            self._decode_tokens += batch.num_decodes
            self._sampled_tokens += num_sampled
            self._sequences += num_sequences
            self._by_tokens[bisect_left(STEP_TOKENS, num_tokens)] += 1
            self._by_sequences[bisect_left(STEP_SEQUENCES, num_sequences)] += 1

    def add_abort(self, reason: AbortReason, num_sequences: int = 1) -> None:
        with self._lock:
            self._aborts[reason] += num_sequences

    def snapshot(self) -> StepCounts:
        with self._lock:
            tokens = self._prefill_tokens + self._decode_tokens
            return StepCounts(
                self._prefill_tokens,
                self._decode_tokens,
                self._sampled_tokens,
                Distribution(STEP_TOKENS, tuple(self._by_tokens), tokens),
                Distribution(STEP_SEQUENCES, tuple(self._by_sequences), self._sequences),
                dict(self._aborts),
            )


def take_snapshot(scheduler: Scheduler, counters: EngineCounters) -> EngineSnapshot:
    """Any thread may take one while another runs the engine."""
    pool = scheduler.pool
    return EngineSnapshot(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        max_num_seqs=scheduler.config.max_num_seqs,
        kv_usage=pool.usage,
        num_blocks=pool.num_blocks,
        block_size=scheduler.config.block_size,
        num_preemptions=scheduler.num_preemptions,
        num_evictions=pool.num_evictions,
        steps=counters.snapshot(),
        prefix=replace(scheduler.cache.stats),
    )
