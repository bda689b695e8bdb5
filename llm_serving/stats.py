"""What an engine tells of itself: counters that it keeps while it runs, and frozen snapshots for whoever reports them.

The engine knows nothing of its readers. They ask for a snapshot when they want one, from any thread; a step pays for a
few additions and never for a reader. Counters only grow over the life of an engine.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

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
class PrefixCounts:
    """Tokens asked of the prefix cache and found in it, at first admissions; `resumed_*` at those after a preemption.

    shared_hits: those of the hits that a live request was holding (in-flight sharing, n > 1); the others were left by
    requests that had ended.
    """

    queries: int
    hits: int
    shared_hits: int
    resumed_queries: int
    resumed_hits: int


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
    prefix: PrefixCounts


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

    def add_step(self, *, num_tokens: int, num_decodes: int, num_sequences: int, num_sampled: int) -> None:
        """Count a step; each decode is one token. Steps that computed nothing are no steps."""
        if not num_tokens:
            return
        with self._lock:
            self._prefill_tokens += num_tokens - num_decodes
            self._decode_tokens += num_decodes
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
