"""A runtime with everything in it that can be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from vtk.errors import NotFoundError, UnavailableError
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.core.prefix_cache import PrefixStats
from vtk.llm_serving.stats import STEP_SEQUENCES, STEP_TOKENS, AbortReason, Distribution, EngineSnapshot, StepCounts
from vtk.serving.arbiter import ArbiterSnapshot
from vtk.serving.model_table import ModelStatus
from vtk.serving.vision_model import VisionStats

SNAPSHOT = EngineSnapshot(
    num_running=3,
    num_waiting=2,
    max_num_seqs=8,
    kv_usage=0.25,
    num_blocks=100,
    block_size=16,
    num_preemptions=5,
    num_evictions=6,
    steps=StepCounts(
        prefill_tokens=700,
        decode_tokens=60,
        sampled_tokens=70,
        tokens=Distribution(STEP_TOKENS, (4, 3, *[0] * 11, 1), 760),
        sequences=Distribution(STEP_SEQUENCES, (8, *[0] * 10), 8),
        aborts={**dict.fromkeys(AbortReason, 0), AbortReason.CLIENT: 9},
    ),
    prefix=PrefixStats(queries=1000, hits=400, shared_hits=100, resumed_queries=50, resumed_hits=20, bypassed=30),
)
STATS = VisionStats(
    pictures=30,
    errors={"ImageError": 2},
    seconds={"decode": 1.5, "infer": 4.0},
    batches={1: 6, 8: 4},
    num_queued=7,
)
ARBITER = ArbiterSnapshot(
    elapsed=10, language_busy=4, vision_busy=1, language_waited=0.5, vision_waited=0.25, language_turns=40,
    vision_turns=10, num_waiting=1,
)  # fmt: skip


class FakeRuntime:
    def __init__(self, *statuses: ModelStatus, engine: Any = None) -> None:
        self._statuses = list(statuses)
        self.arbiter = SimpleNamespace(snapshot=lambda: ARBITER)
        self.budget = SimpleNamespace(total=1000, free=300)
        self.engine = engine or SimpleNamespace(snapshot=lambda: SNAPSHOT)
        self.asked = 0

    def statuses(self) -> list[ModelStatus]:
        self.asked += 1
        return self._statuses

    @contextmanager
    def language(self, name: str) -> Iterator[Any]:
        if name == "gone":
            raise NotFoundError(name)
        args = EngineArgs(kv_cache_dtype="int8")
        yield SimpleNamespace(loaded=SimpleNamespace(engine=self.engine), args=args)

    @contextmanager
    def vision(self, name: str, version: str | None = None) -> Iterator[Any]:
        if name == "loading":
            raise UnavailableError(name)
        yield SimpleNamespace(stats=STATS)


@pytest.fixture
def fake_runtime() -> Callable[..., Any]:
    """A runtime that serves models with these statuses; `engine` is what every language model has for one."""
    return FakeRuntime
