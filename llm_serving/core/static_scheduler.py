"""The scheduler as it was before continuous batching, kept as the "before" of benchmarks.

A batch is formed of the requests that wait and is served until its last member has ended; nobody joins meanwhile. Each
member holds contiguous memory for the longest that any of them may become, as a padded tensor would. Prompts are
computed whole in the batch's first step. Nothing is shared, cached or preempted. (Orca, OSDI 2022, describes it.)
"""

from __future__ import annotations

from vtk.llm_serving.core.batch import Batch
from vtk.llm_serving.core.request import Request, Status
from vtk.llm_serving.core.scheduler import Scheduler


class StaticScheduler(Scheduler):
    """Fixed batches in order of arrival, with the queue, limits, aborts and time-outs of Scheduler."""

    def schedule(self) -> Batch:
        """All pending tokens of the batch; a new batch once the last one has ended."""
        now = self._clock()
        self._expire(now)
        if not self._running:
            self._form_batch(now)
        num_decodes = sum(request.is_decoding for request in self._running.values())
        return Batch({request: request.num_pending for request in self._running.values()}, num_decodes=num_decodes)

    def check_integrity(self) -> None:
        """Raise AssertionError unless blocks, tables and queues agree. Holds between any two calls."""
        self.pool.check_integrity(request.block_table for request in self._running.values())
        assert all(not request.block_table for request in self._waiting.values()), "a waiting request holds blocks"
        for request in self._running.values():
            table = request.block_table
            assert table == list(range(table[0], table[0] + len(table))), "memory is not contiguous"
            assert len(table) >= self._longest(request), "a request may outgrow its memory"

    def _form_batch(self, now: float) -> None:
        """As many waiting requests, in order, as have seats and fit side by side at the length of the longest."""
        members: list[Request] = []
        length = 0
        for request in list(self._waiting.values())[: self.config.max_num_seqs]:
            longest = max(length, self._longest(request))
            if longest * (len(members) + 1) > self.pool.num_blocks:
                break
            members.append(request)
            length = longest
        for index, request in enumerate(members):
            self._blocks.share(request, range(index * length, (index + 1) * length))
            self._start_at(request, now)

    def _start_at(self, request: Request, now: float) -> None:
        request.status = Status.RUNNING
        self.cache.stats.add(request, 0, 0)
        request.num_cached = 0
        request.first_scheduled = now
        request.first_allocated = self._clock()
        self._running[request.request_id] = self._waiting.pop(request.request_id)

    def _longest(self, request: Request) -> int:
        """Blocks of the request at its full length; the token sampled last needs no slot."""
        return self._blocks.num_blocks_for(len(request.prompt) + request.max_tokens - 1)
