"""What an engine tells of itself: counters that add up, prefix hits by source, and a timeline of every request."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_engine import PROMPT, FakeRunner, greedy, make, request

from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, LLMEngine, Vocabulary
from vtk.llm_serving.stats import STEP_TOKENS, AbortReason, EngineCounters, Timeline


class Clock:
    """Stands still until told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def on_clock(clock: Callable[[], float], num_blocks: int = 64, **config: Any) -> LLMEngine:
    small = {"max_model_len": 200, "max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": 4}
    settings = SchedulerConfig(**(small | config))
    vocabulary = Vocabulary(lambda token: bytes([token]), frozenset({0}), frozenset({0}))
    return LLMEngine(FakeRunner(num_blocks, settings.block_size), vocabulary, settings, clock=clock)


def drain(engine: LLMEngine) -> Iterator[Delta]:
    while engine.has_work:
        yield from engine.step()


def random_prompt(rng: np.random.Generator, length: int) -> list[int]:
    return [int(token) for token in rng.integers(32, 127, length)]


def test_step_counts_are_the_tokens_that_were_computed() -> None:
    engine = make()
    engine.add(request("a", max_tokens=5))  # 19 prompt tokens, steps of at most 16
    engine.step()
    steps = engine.snapshot().steps
    assert (steps.prefill_tokens, steps.decode_tokens, steps.sampled_tokens) == (16, 0, 0)
    list(drain(engine))
    steps = engine.snapshot().steps
    assert (steps.prefill_tokens, steps.decode_tokens, steps.sampled_tokens) == (19, 4, 5)
    assert steps.num_steps == 6
    assert steps.tokens.total == 19 + 4
    assert dict(zip(STEP_TOKENS, steps.tokens.counts, strict=False)) == {16: 1, 8: 1, 1: 4} | {
        bound: 0 for bound in STEP_TOKENS if bound > 16
    }
    assert (steps.sequences.counts[0], steps.sequences.total) == (6, 6)


@pytest.mark.parametrize("scheduling", ["continuous", "static"])
def test_every_sampled_token_is_counted_and_decodes_are_told_from_prompts(scheduling: str) -> None:
    rng = np.random.default_rng()
    engine = make(scheduling=scheduling, caching=False)
    lengths = rng.integers(2, 30, 9)
    for i, length in enumerate(lengths):
        engine.add(request(f"r{i}", random_prompt(rng, int(length)), max_tokens=6, ignore_eos=True))
    list(drain(engine))
    snapshot = engine.snapshot()
    assert snapshot.num_preemptions == 0
    assert snapshot.steps.sampled_tokens == 9 * 6
    assert snapshot.steps.prefill_tokens == lengths.sum()
    assert snapshot.steps.decode_tokens == 9 * 5  # the token sampled last is never computed


def test_a_snapshot_shows_queues_blocks_and_seats() -> None:
    engine = make(num_blocks=20, max_num_seqs=2)
    for name in "abc":
        engine.add(request(name, PROMPT[:4], ignore_eos=True))
    assert (engine.snapshot().num_running, engine.snapshot().num_waiting) == (0, 3)
    engine.step()
    snapshot = engine.snapshot()
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.max_num_seqs) == (2, 1, 2)
    assert snapshot.kv_usage == engine.scheduler.pool.usage > 0
    assert (snapshot.num_blocks, snapshot.block_size) == (20, 4)
    list(drain(engine))
    assert engine.snapshot().kv_usage == 0
    assert snapshot.num_running == 2, "a snapshot does not move"


def test_hits_are_told_by_where_they_came_from() -> None:
    engine = make(max_num_batched_tokens=64)
    engine.add(request("cold"))
    list(drain(engine))
    assert engine.snapshot().prefix.hits == 0
    engine.add(request("left by the first", ignore_eos=True))
    engine.step()
    prefix = engine.snapshot().prefix
    assert (prefix.queries, prefix.hits, prefix.shared_hits) == (38, 16, 0)
    engine.add(request("while the second runs"))
    engine.step()
    prefix = engine.snapshot().prefix
    assert (prefix.queries, prefix.hits, prefix.shared_hits) == (57, 32, 16)
    assert (prefix.resumed_queries, prefix.resumed_hits) == (0, 0)


def test_siblings_share_what_is_in_flight() -> None:
    engine = make(max_num_batched_tokens=64)
    engine.add(request("n", n=3))
    list(drain(engine))
    prefix = engine.snapshot().prefix
    assert prefix.hits == prefix.shared_hits == 2 * (len(PROMPT) - 1)


def test_readmissions_count_apart() -> None:
    """Case L02: random prompts in a tiny pool are preempted, and that is not a hit rate."""
    rng = np.random.default_rng()
    engine = make(num_blocks=24, max_num_batched_tokens=32)
    for i in range(8):
        engine.add(request(f"r{i}", [40 + i, *random_prompt(rng, 5)], max_tokens=64, ignore_eos=True))
    list(drain(engine))
    snapshot = engine.snapshot()
    assert snapshot.num_preemptions > 0
    assert (snapshot.prefix.queries, snapshot.prefix.hits, snapshot.prefix.shared_hits) == (48, 0, 0)
    assert snapshot.prefix.resumed_queries > snapshot.prefix.resumed_hits > 0


def test_prompts_that_are_computed_whole_on_purpose_are_no_misses() -> None:
    engine = make(max_num_batched_tokens=64)
    for name, wanted in (("a", None), ("b", 0), ("c", None)):
        engine.add(request(name, prompt_logprobs=wanted))
        list(drain(engine))
    snapshot = engine.snapshot()
    assert (snapshot.prefix.queries, snapshot.prefix.hits, snapshot.prefix.bypassed) == (38, 16, 19)
    assert snapshot.num_prompt_tokens == 3 * len(PROMPT)
    assert [prompt.request_id for prompt in engine.cache.recent()] == ["a#0", "c#0"]


def test_a_timeline_has_the_moments_of_the_first_admission_and_step() -> None:
    clock = Clock()
    engine = on_clock(clock)

    def during_a_step() -> None:
        clock.now += 1

    engine._runner.before_step = during_a_step  # type: ignore[attr-defined]
    engine.add(request("a", max_tokens=3))
    clock.now += 10
    deltas = list(drain(engine))
    assert deltas[0].timeline == Timeline(queued=100, scheduled=110, allocated=110, computed=112, sampled=112)
    assert [delta.timeline for delta in deltas[1:]] == [None, None]


def test_allocating_blocks_is_a_part_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    engine = on_clock(clock)
    match = engine.cache.match

    def slow_match(asked: object) -> list[int]:
        clock.now += 3
        return match(asked)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.cache, "match", slow_match)
    engine.add(request("a", PROMPT[:5], max_tokens=1))
    (delta,) = drain(engine)
    assert delta.timeline == Timeline(queued=100, scheduled=100, allocated=103, computed=103, sampled=103)


def test_preemption_changes_no_timeline() -> None:
    """Case L38: the first token is the first one ever sent, and the queue ends at the first admission."""
    clock = Clock()
    engine = on_clock(clock, num_blocks=24, max_num_batched_tokens=32)
    arrivals = {}
    for i in range(8):
        clock.now += 1
        arrivals[f"r{i}"] = clock.now
        engine.add(request(f"r{i}", [40 + i, *PROMPT[:5]], max_tokens=64, ignore_eos=True))
    first: dict[str, Timeline] = {}
    while engine.has_work:
        clock.now += 1
        for delta in engine.step():
            if delta.timeline is not None:
                assert delta.request_id not in first
                first[delta.request_id] = delta.timeline
                assert delta.timeline.sampled == clock.now
    assert engine.scheduler.num_preemptions > 0
    assert {name: timeline.queued for name, timeline in first.items()} == arrivals


def test_a_prompt_that_is_preempted_half_way_keeps_its_first_moments() -> None:
    """Case L38: the queue ended at its first admission; what came after belongs to the prefill."""
    clock = Clock()
    engine = on_clock(clock, num_blocks=12, scheduling_policy="priority")
    low = request("low", [50] * 40, max_tokens=2)
    engine.add(SimpleNamespace(**(vars(low) | {"priority": 1})))  # type: ignore[arg-type]
    engine.step()
    clock.now = 200
    engine.add(request("high", [60] * 40, max_tokens=2))
    timelines = {}
    while engine.has_work:
        clock.now += 1
        timelines |= {delta.request_id: delta.timeline for delta in engine.step() if delta.timeline is not None}
    assert engine.scheduler.num_preemptions == 1
    assert (timelines["low"].scheduled, timelines["low"].allocated) == (100, 100)
    assert timelines["low"].computed > timelines["high"].computed > 200


def test_a_request_that_never_started_has_no_timeline() -> None:
    clock = Clock()
    engine = on_clock(clock, max_num_seqs=1)
    engine.add(request("running", max_tokens=3))
    engine.step()
    late = request("late")
    engine.add(SimpleNamespace(**(vars(late) | {"queue_timeout": 5.0})))  # type: ignore[arg-type]
    clock.now += 6
    (delta,) = [delta for delta in engine.step() if delta.request_id == "late"]
    assert (delta.finish_reason, delta.timeline) == (FinishReason.TIMEOUT, None)
    assert engine.snapshot().steps.aborts == {**dict.fromkeys(AbortReason, 0), AbortReason.TIMEOUT: 1}


def test_aborts_are_told_by_their_reason() -> None:
    engine = make()
    engine.add(request("left", n=2))
    engine.add(request("failed"))
    engine.step()
    engine.abort("left")
    engine.abort("left")
    engine.reset()
    aborts = engine.snapshot().steps.aborts
    assert aborts == {**dict.fromkeys(AbortReason, 0), AbortReason.CLIENT: 2, AbortReason.FAILURE: 1}


def test_ends_by_length_and_stop_strings_are_no_aborts() -> None:
    engine = make()
    engine.add(request("a", max_tokens=2))
    engine.add(request("b", stop=tuple(greedy(PROMPT, 3)[-1])))
    list(drain(engine))
    assert not any(engine.snapshot().steps.aborts.values())


def test_counters_read_from_another_thread_are_never_torn() -> None:
    """Tokens of a step are counted with its bucket: whoever reads in between sees whole steps."""
    counters = EngineCounters()
    batch = SimpleNamespace(num_tokens=7, num_decodes=3, num_new=range(5))
    done = threading.Event()

    def write() -> None:
        for _ in range(3000):
            counters.add_step(batch, 2)  # type: ignore[arg-type]
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        seen = counters.snapshot()
        assert seen.tokens.total == 7 * seen.num_steps == seen.prefill_tokens + seen.decode_tokens
        assert seen.sampled_tokens == 2 * seen.num_steps
    writer.join()
    assert counters.snapshot().num_steps == 3000


def test_recent_prompts_are_kept_for_whoever_asks_why_they_missed() -> None:
    engine = make(max_num_batched_tokens=64)
    for name, prompt in (("a", PROMPT), ("b", PROMPT[:8] + PROMPT)):
        engine.add(request(name, prompt, n=2))
        list(drain(engine))
    seen = engine.cache.recent()
    assert [(prompt.request_id, prompt.length, prompt.num_cached) for prompt in seen] == [
        ("a#0", 19, 0),
        ("b#0", 27, 8),
    ]
    assert list(seen[1].tokens) == PROMPT[:8] + PROMPT


def test_without_a_cache_nothing_is_remembered() -> None:
    engine = make(caching=False)
    engine.add(request())
    list(drain(engine))
    assert engine.cache.recent() == ()
