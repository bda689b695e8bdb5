"""A scheduler on a fake device whose KV "values" are the tokens themselves, so that any wrong sharing shows."""

import itertools
from collections import defaultdict
from collections.abc import Callable

import pytest

from vtk.llm_serving.core.batch import Batch
from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.prefix_cache import BlockPrefixCache, NoPrefixCache
from vtk.llm_serving.core.request import Request, Status
from vtk.llm_serving.core.scheduler import Scheduler
from vtk.llm_serving.core.static_scheduler import StaticScheduler


def next_token(tokens: list[int]) -> int:
    """The fake model: depends on every token before."""
    return hash(tuple(tokens)) % 50_000


class World:
    """Scheduler, fake KV memory and a clock that moves one unit a step. sent: what streams have got."""

    def __init__(self, num_blocks: int = 32, caching: bool = True, **config: object) -> None:
        settings: dict[str, object] = {
            "max_model_len": 512,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "block_size": 4,
            "watermark": 0.0,
        }
        settings.update(config)
        self.config = SchedulerConfig(**settings)  # type: ignore[arg-type]
        self.pool = BlockPool(num_blocks)
        self.now = 0.0
        self.cache = BlockPrefixCache(self.pool, self.config.block_size) if caching else NoPrefixCache()
        kind = StaticScheduler if self.config.scheduling == "static" else Scheduler
        self.scheduler = kind(self.config, self.pool, self.cache, lambda: self.now)
        self.slots: list[int | None] = [None] * (num_blocks * self.config.block_size)
        self.finished: list[Request] = []
        self.sent: defaultdict[str, list[int]] = defaultdict(list)
        self.num_computed = 0
        self._ids = itertools.count()

    def add(self, prompt: list[int], max_tokens: int = 4, **fields: object) -> Request:
        request = Request(f"r{next(self._ids)}", prompt, max_tokens, arrival=self.now, **fields)  # type: ignore[arg-type]
        self.scheduler.add(request)
        return request

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        self.scheduler.check_integrity()
        tokens = self._forward(batch)
        changed = self.scheduler.update(batch, tokens)
        self.scheduler.check_integrity()
        for request, token in tokens.items():
            self.sent[request.request_id].append(token)
        self.finished += [request for request in changed if request.status is Status.FINISHED]
        self.now += 1
        return batch

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError("the scheduler makes no progress")

    def _forward(self, batch: Batch) -> dict[Request, int]:
        """Store what is new for all requests, then let each read its whole past, as one layer of a model does."""
        size = self.config.block_size
        if self.config.scheduling == "continuous":
            assert 0 <= batch.num_tokens <= self.config.max_num_batched_tokens
        assert len(batch.num_new) <= self.config.max_num_seqs
        self.num_computed += batch.num_tokens
        for source, target in batch.copies:
            self.slots[target * size : (target + 1) * size] = self.slots[source * size : (source + 1) * size]
        written: dict[int, int] = {}
        for request, count in batch.num_new.items():
            for position in range(request.num_computed, request.num_computed + count):
                slot = request.block_table[position // size] * size + position % size
                token = request.tokens(position, position + 1)[0]
                assert slot not in written, "two requests write one slot in one step"
                written[slot] = self.slots[slot] = token
        sampled = {}
        for request, count in batch.num_new.items():
            end = request.num_computed + count
            seen = [self.slots[request.block_table[p // size] * size + p % size] for p in range(end)]
            assert seen == request.tokens(0, end), "the KV of a request is not its own past"
            if end == request.num_tokens:
                sampled[request] = next_token(request.tokens(0, end))
        assert list(sampled) == batch.sampling()
        return sampled


@pytest.fixture(scope="session")
def world() -> Callable[..., World]:
    return World


@pytest.fixture(scope="session")
def expected() -> Callable[[Request], list[int]]:
    """The output that the request must have, alone and undisturbed."""

    def run(request: Request) -> list[int]:
        tokens = list(request.prompt)
        for _ in range(len(request.output)):
            tokens.append(next_token(tokens))
        return tokens[len(request.prompt) :]

    return run
