"""Laws of the baseline: fixed batches, contiguous memory at full length, no sharing."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from vtk.errors import RequestError, UsageError
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.request import FinishReason, Request, Status

Worlds = Callable[..., Any]
Expected = Callable[[Request], list[int]]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


def test_nobody_joins_a_batch_before_its_last_member_has_ended(world: Worlds, expected: Expected) -> None:
    w = world(scheduling="static", num_blocks=64, max_num_seqs=3)
    first = [w.add(prompt(5, seed), max_tokens=tokens) for seed, tokens in enumerate((2, 9, 4))]
    late = [w.add(prompt(5, seed), max_tokens=2) for seed in range(3, 5)]
    for _ in range(9):
        assert all(request.status is Status.WAITING for request in late)
        w.step()
    assert all(request.status is Status.FINISHED for request in first)
    w.step()
    assert all(len(request.output) == 1 for request in late)
    w.run()
    assert all(request.output == expected(request) for request in first + late)


def test_prompts_are_computed_whole_in_the_first_step(world: Worlds) -> None:
    w = world(scheduling="static", num_blocks=64)
    requests = [w.add(prompt(length), max_tokens=3) for length in (40, 30, 20)]
    assert list(w.step().num_new.values()) == [40, 30, 20]
    assert all(len(request.output) == 1 for request in requests)
    assert list(w.step().num_new.values()) == [1, 1, 1]


def test_every_member_holds_the_length_of_the_longest(world: Worlds) -> None:
    w = world(scheduling="static", num_blocks=64)
    requests = [w.add(prompt(length), max_tokens=tokens) for length, tokens in ((3, 2), (10, 11), (1, 1))]
    w.step()
    assert [len(request.block_table) for request in requests] == [5, 5, 0]  # the third has ended
    assert w.pool.num_free == 64 - 10


def test_a_batch_is_as_many_as_fit_side_by_side(world: Worlds, expected: Expected) -> None:
    w = world(scheduling="static", num_blocks=10)
    requests = [w.add(prompt(8, seed), max_tokens=5) for seed in range(4)]
    sizes = []
    while w.scheduler.has_work:
        sizes.append(len(w.step().num_new))
    assert sizes == [3] * 5 + [1] * 5
    assert all(request.output == expected(request) for request in requests)


def test_equal_prompts_share_nothing(world: Worlds, expected: Expected) -> None:
    w = world(scheduling="static", num_blocks=64, caching=False)
    first = w.add(prompt(20))
    requests = [first, w.add(prompt(20)), w.add(list(first.prompt), fork_of=first)]
    w.run()
    w.add(prompt(20))
    w.run()
    assert w.num_computed == 4 * (20 + 3)
    assert all(request.num_cached == 0 for request in w.finished)
    assert all(request.output == expected(request) for request in requests)


def test_an_abort_frees_memory_and_keeps_the_batch_closed(world: Worlds, expected: Expected) -> None:
    w = world(scheduling="static", num_blocks=16, max_num_seqs=2)
    go, stay, late = (w.add(prompt(8, seed), max_tokens=6) for seed in range(3))
    w.step()
    w.scheduler.abort(go.request_id)
    w.scheduler.check_integrity()
    assert w.pool.num_free == 16 - len(stay.block_table)
    w.step()
    assert late.status is Status.WAITING
    w.scheduler.abort(stay.request_id)
    w.step()
    assert len(late.output) == 1
    w.run()
    assert late.output == expected(late)


def test_limits_and_time_outs_are_those_of_the_scheduler(world: Worlds) -> None:
    w = world(scheduling="static", num_blocks=8)
    with pytest.raises(RequestError, match="whole pool holds 32"):
        w.add(prompt(30), max_tokens=5)
    w.add(prompt(3), max_tokens=9)
    w.step()
    late = w.add(prompt(3), queue_timeout=2.0)
    w.run()
    assert late.finish_reason is FinishReason.TIMEOUT


@pytest.mark.parametrize("seed", range(20))
def test_random_traffic_gets_its_tokens_and_every_block_comes_back(
    world: Worlds, expected: Expected, seed: int
) -> None:
    rng = random.Random(seed)
    w = world(scheduling="static", num_blocks=rng.randint(16, 60), max_num_seqs=rng.randint(1, 8))
    live: list[Request] = []
    for index in range(60):
        if rng.random() < 0.6:
            live.append(w.add(prompt(rng.randint(1, 30), index), max_tokens=rng.randint(1, 20)))
        if live and rng.random() < 0.1:
            w.scheduler.abort(rng.choice(live).request_id)
        w.step()
    w.run()
    assert all(request.output == expected(request) for request in live)
    assert all(r.finish_reason is FinishReason.ABORT or len(r.output) == r.max_tokens for r in live)
    assert w.pool.num_free == w.pool.num_blocks
    ended = [request.sequence for request in w.finished if request.finish_reason is not FinishReason.ABORT]
    assert len(ended) == len(set(ended))


def test_other_orders_than_that_of_arrival_are_refused() -> None:
    with pytest.raises(UsageError, match="order of arrival, not by 'priority'"):
        SchedulerConfig(max_model_len=100, scheduling="static", scheduling_policy="priority")
    with pytest.raises(UsageError, match="Unknown scheduling 'dynamic'"):
        SchedulerConfig(max_model_len=100, scheduling="dynamic")  # type: ignore[arg-type]
