"""Which tokens of which requests the next step computes, and who holds which blocks.

One rule covers prefill, chunked prefill, decode, prefix hits and recompute after preemption: a request has known tokens
and computed tokens, and a step computes some more. Decodes are served first, then prompts in the policy's order.

Nothing that a step has scheduled is taken back: victims of preemption are always requests not yet scheduled in it.
Hence a block may be published as soon as its tokens are scheduled, and a request admitted later in the same step may
already share it (every layer stores keys and values before it attends).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vtk.errors import RequestError
from vtk.llm_serving.core.admission import check_fits
from vtk.llm_serving.core.batch import Batch, StepPlan
from vtk.llm_serving.core.block_manager import BlockManager
from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.policy import rank, serving_order
from vtk.llm_serving.core.prefix_cache import PrefixCache
from vtk.llm_serving.core.request import FinishReason, Request, Status


@dataclass(frozen=True)
class _Start:
    """Where a request may begin: blocks to share, tokens they hold, and copies that sharing will cost."""

    blocks: list[int]
    num_computed: int
    num_copies: int = 0


class Scheduler:
    """Owner of all live requests and of their blocks. Not thread-safe: one loop calls it."""

    def __init__(
        self, config: SchedulerConfig, pool: BlockPool, cache: PrefixCache, clock: Callable[[], float]
    ) -> None:
        self.config = config
        self.pool = pool
        self.cache = cache
        self._blocks = BlockManager(pool, config.block_size)
        self._clock = clock
        self._waiting: dict[str, Request] = {}
        self._running: dict[str, Request] = {}
        self._timed_out: list[Request] = []
        self._sequence = itertools.count()
        self.num_preemptions = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running or self._timed_out)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError, with both numbers, for one that could never be finished."""
        if request.request_id in self._waiting or request.request_id in self._running:
            raise RequestError("invalid_request", f"A request with the id '{request.request_id}' is already live.")
        check_fits(len(request.prompt), request.max_tokens, self.config, self.pool.num_blocks)
        parent = request.fork_of
        assert parent is None or (parent.prompt, parent.priority) == (request.prompt, request.priority)
        request.sequence = next(self._sequence)
        self._waiting[request.request_id] = request

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a request wherever it stands and free its blocks; None if it is not live."""
        request = self._running.get(request_id) or self._waiting.get(request_id)
        if request is not None:
            self._finish(request, reason)
        return request

    def schedule(self) -> Batch:
        """Decide the next step. Blocks are allocated for exactly the tokens it computes."""
        now = self._clock()
        self._expire(now)
        planned = {content for r in self._running.values() if not r.is_decoding for content in self._unmatched(r)}
        if self.config.scheduling_policy == "priority":
            self._make_room_for_priority(planned)
        step = StepPlan(self.config.max_num_batched_tokens)
        for request in sorted((r for r in self._running.values() if r.is_decoding), key=rank):
            if request.status is Status.RUNNING and step.budget:
                self._continue(request, step)
        num_decodes = len(step.num_new)
        self._schedule_prompts(step, planned, now)
        return Batch(step.num_new, tuple(step.copies), num_decodes)

    def update(self, batch: Batch, tokens: Mapping[Request, int]) -> list[Request]:
        """Book what a step computed and sampled. Returns the requests that got a token or ended."""
        changed = self._timed_out
        self._timed_out = []
        for request, count in batch.num_new.items():
            if request.status is not Status.RUNNING:
                continue
            request.num_computed += count
            if request.num_pending == 0:
                request.output.append(tokens[request])
                changed.append(request)
                reason = self._finish_reason(request)
                if reason is not None:
                    self._finish(request, reason)
        return changed

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, tables and queues agree. Holds between any two calls."""
        self.pool.check_integrity(request.block_table for request in self._running.values())
        assert all(not request.block_table for request in self._waiting.values()), "a waiting request holds blocks"
        for request in self._running.values():
            slots = len(request.block_table) * self.config.block_size
            assert request.num_computed <= slots, "computed tokens without a slot"
            assert slots - request.num_tokens < self.config.block_size, "more than one block is wasted"

    def _schedule_prompts(self, step: StepPlan, planned: set[bytes], now: float) -> None:
        prefills = [r for r in self._running.values() if not r.is_decoding]
        admitting = True
        for request in serving_order([*prefills, *self._waiting.values()], self.config, now):
            if not step.budget:
                break
            if request.status is Status.RUNNING:
                self._continue(request, step)
            elif admitting and request.status is Status.WAITING:
                admitting = self._try_admit(request, step, planned)

    def _continue(self, request: Request, step: StepPlan) -> None:
        """Give a running request its next tokens, preempting whoever ranks below it and is not in the step yet."""
        count = self._chunk(request, step.budget)
        while count and not self._blocks.can_grow(request, count):
            victim = self._victim(request, step)
            if victim is None:
                return
            self._preempt(victim)
        if count:
            self._commit(request, count, step)

    def _try_admit(self, request: Request, step: StepPlan, planned: set[bytes]) -> bool:
        """Start a waiting request if it can be. False: no later request may start before it either."""
        now = self._clock()
        start = self._start(request, planned)
        # Copies run before the step, which may yet fill the blocks that a parent admitted in it has.
        if start is None or (start.num_copies and request.fork_of in step.admitted):
            return True
        count = self._chunk(request, step.budget, request.num_tokens - start.num_computed)
        if not count or not self._fits(request, start):
            return False
        self._admit(request, start, now)
        step.admitted.add(request)
        self._commit(request, count, step)
        if request.first_allocated is None:
            request.first_allocated = self._clock()
        planned.update(self._unmatched(request))
        return True

    def _start(self, request: Request, planned: set[bytes]) -> _Start | None:
        """What is computed already for a waiting request; None if waiting a little lets it share more."""
        parent = request.fork_of
        if parent is not None and not request.output and parent.status is not Status.FINISHED:
            length = len(request.prompt)
            if parent.status is Status.WAITING or parent.num_computed < length:
                return None
            # The last prompt token is computed again, into a private copy of its block, for its logits.
            return _Start(parent.block_table[: self._blocks.num_blocks_for(length)], length - 1, num_copies=1)
        blocks = self.cache.match(request)
        if planned.intersection(self.cache.remaining(request, len(blocks))[:1]):
            return None  # a running request is about to compute the very next block
        return _Start(blocks, len(blocks) * self.config.block_size)

    def _admit(self, request: Request, start: _Start, now: float) -> None:
        self._blocks.share(request, start.blocks)
        request.num_computed = start.num_computed
        request.status = Status.RUNNING
        self._running[request.request_id] = self._waiting.pop(request.request_id)
        held = sum(map(self.pool.is_shared, start.blocks)) * self.config.block_size
        self.cache.stats.add(request, start.num_computed, min(held, start.num_computed))
        if request.num_cached is None:
            request.num_cached = start.num_computed
            request.first_scheduled = now
            self.cache.remember(request)

    def _commit(self, request: Request, count: int, step: StepPlan) -> None:
        step.copies += self._blocks.grow(request, count)
        step.add(request, count)
        self.cache.publish(request, request.num_computed + count)

    def _fits(self, request: Request, start: _Start, freed: int = 0, freed_seats: int = 0) -> bool:
        """A seat, and room for all known tokens beside what running prompts will still need and the watermark."""
        if len(self._running) - freed_seats >= self.config.max_num_seqs:
            return False
        taken = sum(self.pool.is_free(block) for block in start.blocks)
        needed = self._blocks.num_blocks_for(request.num_tokens) - len(start.blocks) + start.num_copies
        promised = sum(map(self._blocks.num_missing, self._running.values()))
        spare = int(self.config.watermark * self.pool.num_blocks) if self._running else 0
        return needed + promised + spare <= self.pool.num_free - taken + freed

    def _unmatched(self, request: Request) -> list[bytes]:
        return self.cache.remaining(request, request.num_computed // self.config.block_size)

    def _chunk(self, request: Request, budget: int, pending: int | None = None) -> int:
        pending = request.num_pending if pending is None else pending
        if not self.config.enable_chunked_prefill:
            return pending if pending <= budget else 0
        return min(pending, budget, self.config.long_prefill_token_threshold or budget)

    def _make_room_for_priority(self, planned: set[bytes]) -> None:
        """Preempt strictly lower priorities for the best waiting request, only if that lets it start."""
        best = min(self._waiting.values(), key=rank, default=None)
        start = self._start(best, planned) if best is not None else None
        if best is None or start is None:
            return
        lower = [r for r in sorted(self._running.values(), key=rank, reverse=True) if r.priority > best.priority]
        dropped: Counter[int] = Counter()
        for count in range(len(lower) + 1):
            if self._fits(best, start, self.pool.num_freed(dropped), count):
                for victim in lower[:count]:
                    self._preempt(victim)
                return
            if count < len(lower):
                dropped.update(set(lower[count].block_table).difference(start.blocks))

    def _victim(self, request: Request, step: StepPlan) -> Request | None:
        worst = max((r for r in self._running.values() if r not in step.num_new), key=rank)
        return worst if rank(worst) > rank(request) else None

    def _preempt(self, request: Request) -> None:
        """Back to the queue; what it knows is recomputed later, from the cache where blocks survive."""
        self._blocks.release(request)
        request.num_computed = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        request.status = Status.WAITING
        self._waiting[request.request_id] = self._running.pop(request.request_id)

    def _expire(self, now: float) -> None:
        for request in list(self._waiting.values()):
            limit = request.queue_timeout
            if limit is not None and request.first_scheduled is None and now - request.arrival > limit:
                self._finish(request, FinishReason.TIMEOUT)
                self._timed_out.append(request)

    def _finish_reason(self, request: Request) -> FinishReason | None:
        if request.output[-1] in request.stop_ids and len(request.output) >= request.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(request.output) >= request.max_tokens else None

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._blocks.release(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        self._running.pop(request.request_id, None)
        self._waiting.pop(request.request_id, None)
