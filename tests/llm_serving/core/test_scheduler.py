"""Laws of the scheduler, over a fake model that notices every wrong, stale or missing block."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.errors import RequestError, UsageError
from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.request import ExtraKey, FinishReason, Request

Worlds = Callable[..., Any]
Expected = Callable[[Request], list[int]]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


def test_a_lone_request_gives_its_output_and_frees_its_blocks(world: Worlds, expected: Expected) -> None:
    w = world()
    request = w.add(prompt(10), max_tokens=5)
    w.run()
    assert request.output == expected(request)
    assert len(request.output) == 5
    assert request.finish_reason is FinishReason.LENGTH
    assert w.pool.num_free == w.pool.num_blocks


@pytest.mark.parametrize(("length", "cached"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (48, 32)])
def test_a_repeat_hits_all_full_blocks_but_computes_a_token(
    world: Worlds, expected: Expected, length: int, cached: int
) -> None:
    """Case L01: cached = floor((n - 1) / 16) * 16, and the ids are those of the cold run."""
    w = world(num_blocks=64, block_size=16)
    runs = []
    for _ in range(3):
        runs.append(w.add(prompt(length), max_tokens=8))
        w.run()
    assert [request.num_cached for request in runs] == [0, cached, cached]
    assert runs[0].output == runs[1].output == runs[2].output == expected(runs[0])


def test_recompute_after_preemption_is_not_a_hit(world: Worlds) -> None:
    """Case L02: random prompts share nothing, whatever preemption does."""
    w = world(num_blocks=24, max_num_seqs=8, max_num_batched_tokens=64)
    for seed in range(8):
        w.add(prompt(6, seed), max_tokens=64)
    w.run()
    assert w.scheduler.num_preemptions > 0
    assert w.cache.stats.hits == 0
    assert w.cache.stats.queries == 8 * 6


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("chunk", [0, 16, 24])
def test_a_new_prefix_is_computed_once_by_simultaneous_requests(
    world: Worlds, expected: Expected, chunk: int, count: int
) -> None:
    """Case L04: cold requests share 400 tokens; each computes only its own suffix, although the step has room."""
    w = world(
        num_blocks=200, block_size=16, max_num_batched_tokens=64, long_prefill_token_threshold=chunk, max_model_len=512
    )
    shared = prompt(400)
    requests = [w.add(shared + prompt(3, seed), max_tokens=2) for seed in range(1, 1 + count)]
    w.run()
    assert all(request.output == expected(request) for request in requests)
    assert w.num_computed == 400 + count * 3 + count * 1
    assert [request.num_cached for request in requests] == [0] + [400] * (count - 1)
    assert w.cache.stats.hits == 400 * (count - 1)


def test_waiting_for_a_shared_prefix_does_not_block_others(world: Worlds) -> None:
    w = world(num_blocks=200, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    first, twin, other = w.add(prompt(40)), w.add(prompt(40)), w.add(prompt(5, 9))
    w.step()
    assert first.num_computed == 8
    assert twin.num_computed == 0
    assert len(other.output) == 1


@pytest.mark.parametrize("kind", ["salt", "adapter"])
def test_hits_stay_within_equal_extra_keys(world: Worlds, kind: str) -> None:
    """Case L07: no hit across salts or adapters, nor between an adapter and a salt of one name."""
    w = world()
    keys = [(), (ExtraKey(kind, "a"),), (ExtraKey(kind, "b"),), (ExtraKey("other", "a"),)]
    for key in keys:
        assert w.add(prompt(20), extra_keys=key).num_cached is None
        w.run()
    assert [request.num_cached for request in w.finished] == [0, 0, 0, 0]
    for key in keys:
        w.add(prompt(20), extra_keys=key)
        w.run()
    assert [request.num_cached for request in w.finished[4:]] == [16] * 4


def test_an_image_key_leaves_the_text_before_it_shared(world: Worlds) -> None:
    w = world()
    for value in ("cat", "dog"):
        w.add(prompt(20), extra_keys=(ExtraKey("image", value, start=9),))
        w.run()
    assert w.finished[1].num_cached == 8


def test_every_prefix_length_resumes_exactly(world: Worlds, expected: Expected) -> None:
    """Case L12: k warmed blocks, then the whole prompt, for every k."""
    for k in range(1, 8):
        w = world()
        whole = prompt(30)
        w.add([*whole[: 4 * k], -1], max_tokens=1)
        w.run()
        request = w.add(whole)
        w.run()
        assert request.num_cached == 4 * k
        assert request.output == expected(request)


def test_a_request_that_never_fits_is_refused_and_blocks_nobody(world: Worlds) -> None:
    """Cases L13, L14: refused at admission with both numbers."""
    w = world(num_blocks=32, block_size=16, max_model_len=2048)
    with pytest.raises(RequestError, match=r"615 tokens .* holds 512") as error:
        w.add(prompt(600), max_tokens=16)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(RequestError, match=r"9000 tokens .* 2048"):
        w.add(prompt(9000), max_tokens=1)
    short = w.add(prompt(20))
    w.run()
    assert len(short.output) == 4


def test_the_context_may_be_filled_to_the_last_token(world: Worlds) -> None:
    w = world(num_blocks=32, block_size=16, max_model_len=512)
    fits = w.add(prompt(511), max_tokens=1)
    w.run()
    assert len(fits.output) == 1
    with pytest.raises(RequestError, match="exceed the context of 512"):
        w.add(prompt(511), max_tokens=2)


def test_the_whole_pool_serves_one_request(world: Worlds, expected: Expected) -> None:
    w = world(num_blocks=8)
    request = w.add(prompt(20), max_tokens=13)
    w.run()
    assert request.output == expected(request)
    assert len(request.output) == 13


def test_preemption_keeps_the_output_and_never_ping_pongs(world: Worlds, expected: Expected) -> None:
    """Case L16: a tiny pool, and everyone still gets the right tokens, once: what was sent is computed, not sampled."""
    w = world(num_blocks=16, max_num_seqs=8)
    requests = [w.add(prompt(5 + seed, seed), max_tokens=30) for seed in range(8)]
    w.run()
    assert all(request.output == expected(request) == w.sent[request.request_id] for request in requests)
    assert w.scheduler.num_preemptions > 0
    assert sum(request.num_preemptions for request in requests) <= 4 * len(requests)


def test_the_oldest_is_never_preempted(world: Worlds) -> None:
    w = world(num_blocks=16, max_num_seqs=8)
    first, *_ = [w.add(prompt(8, seed), max_tokens=40) for seed in range(6)]
    w.run()
    assert first.num_preemptions == 0
    assert w.scheduler.num_preemptions > 0


def test_a_higher_priority_takes_a_seat(world: Worlds) -> None:
    """Case L17: all seats are taken by low priorities; the urgent request starts in the next step."""
    w = world(num_blocks=200, max_num_seqs=4, scheduling_policy="priority")
    low = [w.add(prompt(8, seed), max_tokens=100, priority=10) for seed in range(4)]
    w.step()
    urgent = w.add(prompt(8, 99), priority=0)
    w.step()
    assert len(urgent.output) == 1
    assert [request.num_preemptions for request in low] == [0, 0, 0, 1]


def test_priority_counts_the_blocks_that_two_victims_share(world: Worlds) -> None:
    w = world(num_blocks=12, scheduling_policy="priority")
    low = [w.add(prompt(16), max_tokens=8, priority=9) for _ in range(2)]
    w.step()
    assert all(request.output for request in low)
    assert len(set(low[0].block_table) & set(low[1].block_table)) == 3
    urgent = w.add(prompt(40, 2), max_tokens=2, priority=0)
    w.step()
    assert urgent.output
    assert [request.num_preemptions for request in low] == [1, 1]
    w.run()


def test_equal_priorities_do_not_preempt_each_other(world: Worlds) -> None:
    w = world(num_blocks=200, max_num_seqs=2, scheduling_policy="priority")
    for seed in range(6):
        w.add(prompt(8, seed), max_tokens=10, priority=3)
    w.run()
    assert w.scheduler.num_preemptions == 0


def test_priority_preempts_nobody_when_that_would_not_help(world: Worlds) -> None:
    w = world(num_blocks=12, scheduling_policy="priority")
    high = w.add(prompt(30), max_tokens=10, priority=1)
    low = w.add(prompt(3, 1), max_tokens=8, priority=9)
    w.step()
    assert high.output
    assert low.output
    w.add(prompt(40, 2), max_tokens=2, priority=0)  # would need `high` gone as well, which it may preempt
    w.step()
    assert low.num_preemptions == 1
    assert high.num_preemptions == 1
    w.run()


def test_short_prompts_pass_a_long_one_until_it_is_overdue(world: Worlds) -> None:
    """Case L19: the server is full of short prompts; the long one still starts within the stated wait."""
    w = world(num_blocks=400, max_num_seqs=4, scheduling_policy="short_first", short_first_max_wait=20.0)
    long = None
    for step in range(60):
        for seed in range(4):
            w.add(prompt(20, 100 * step + seed), max_tokens=1)
        if step == 3:
            long = w.add(prompt(200, 7), max_tokens=1)
        w.step()
    assert long is not None
    assert long.first_scheduled is not None
    assert 10 < long.first_scheduled - long.arrival <= 21


def test_a_long_prefill_does_not_stall_decodes_or_short_prompts(world: Worlds) -> None:
    w = world(num_blocks=400, max_num_batched_tokens=16, long_prefill_token_threshold=8)
    decoding = w.add(prompt(4), max_tokens=50)
    w.step()
    w.add(prompt(300, 1), max_tokens=1)
    short = w.add(prompt(6, 2), max_tokens=1)
    w.step()
    assert len(decoding.output) == 2
    assert short.output


def test_without_chunking_a_prompt_is_computed_whole(world: Worlds) -> None:
    w = world(num_blocks=64, enable_chunked_prefill=False, max_num_batched_tokens=64, max_model_len=64)
    for seed in range(3):
        w.add(prompt(40, seed), max_tokens=2)
    assert list(w.step().num_new.values()) == [40]
    w.run()
    assert len(w.finished) == 3


def test_requests_that_wait_too_long_time_out(world: Worlds) -> None:
    w = world(max_num_seqs=1)
    w.add(prompt(4), max_tokens=30)
    late = w.add(prompt(4, 1), queue_timeout=5.0)
    w.run()
    assert late.finish_reason is FinishReason.TIMEOUT
    assert late.output == []
    assert late in w.finished


def test_parallel_samples_share_the_prompt_and_copy_on_write(world: Worlds, expected: Expected) -> None:
    """n = 3 over a 10-token prompt without prefix caching: the prompt is computed once, plus one token a fork."""
    w = world(caching=False)
    parent = w.add(prompt(10), max_tokens=6)
    children = [w.add(prompt(10), max_tokens=6, fork_of=parent) for _ in range(2)]
    w.run()
    assert all(request.output == expected(request) for request in (parent, *children))
    assert w.num_computed == 10 + 2 * 1 + 3 * 5


def test_a_fork_outlives_its_parent(world: Worlds, expected: Expected) -> None:
    w = world(max_num_batched_tokens=16)
    parent = w.add(prompt(40), max_tokens=6)
    child = w.add(prompt(40), max_tokens=6, fork_of=parent)
    w.step()
    w.scheduler.abort(parent.request_id)
    w.run()
    assert child.output == expected(child)
    assert len(child.output) == 6


def test_a_fork_never_copies_a_block_that_the_same_step_fills(world: Worlds, expected: Expected) -> None:
    """A preempted parent comes back on blocks that another request is only about to compute."""
    w = world(num_blocks=8, scheduling_policy="priority")
    stem = prompt(8)
    first = w.add(stem + prompt(2, 1), max_tokens=6, priority=1)
    parent = w.add(stem, max_tokens=6, priority=1)
    w.step()
    w.step()
    urgent = w.add(prompt(26, 2), max_tokens=2, priority=0)
    w.step()
    assert [request.num_preemptions for request in (first, parent)] == [1, 1]
    child = w.add(stem, max_tokens=3, fork_of=parent, priority=1)
    w.run()
    assert all(request.output == expected(request) for request in (first, parent, urgent, child))
    assert w.pool.num_free == w.pool.num_blocks


def test_stop_ids_end_a_request_after_min_tokens(world: Worlds, expected: Expected) -> None:
    w = world()
    probe = w.add(prompt(6), max_tokens=9)
    w.run()
    stop = probe.output[3]
    request = w.add(prompt(6), max_tokens=9, stop_ids=frozenset({stop}))
    patient = w.add(prompt(6), max_tokens=9, stop_ids=frozenset({stop}), min_tokens=5)
    w.run()
    assert request.output == probe.output[:4]
    assert request.finish_reason is FinishReason.STOP
    assert patient.output == probe.output


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"scheduling_policy": "lifo"}, "Unknown scheduling_policy 'lifo'"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 8}, "must exceed max_num_seqs"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 256}, "Without chunked prefill"),
        ({"block_size": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SchedulerConfig(max_model_len=512, **settings_)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_traces_keep_every_law(world: Worlds, expected: Expected, data: st.DataObject) -> None:
    """Arrivals, forks, aborts, time-outs and preemptions in any order: right tokens, whole blocks, no starvation."""
    w = world(
        num_blocks=data.draw(st.integers(14, 40)),
        caching=data.draw(st.booleans()),
        max_num_seqs=data.draw(st.integers(1, 6)),
        max_num_batched_tokens=data.draw(st.sampled_from([8, 13, 64])),
        scheduling_policy=data.draw(st.sampled_from(["fcfs", "priority", "short_first"])),
        long_prefill_token_threshold=data.draw(st.sampled_from([0, 3])),
        watermark=data.draw(st.sampled_from([0.0, 0.1])),
        max_model_len=60,
    )
    live: list[Request] = []
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["add", "add", "fork", "abort", "step", "step", "step"]))
        if action == "add":
            stem = prompt(data.draw(st.integers(1, 30)), seed=data.draw(st.integers(0, 2)))
            live.append(
                w.add(
                    stem + data.draw(st.lists(st.integers(0, 2), max_size=3)),
                    max_tokens=data.draw(st.integers(1, 16)),
                    priority=data.draw(st.integers(0, 2)),
                    queue_timeout=data.draw(st.sampled_from([None, 3.0])),
                    extra_keys=data.draw(st.sampled_from([(), (ExtraKey("salt", "s"),)])),
                )
            )
        elif action == "fork" and live:
            parent = data.draw(st.sampled_from(live))
            live.append(
                w.add(
                    list(parent.prompt),
                    max_tokens=5,
                    fork_of=parent,
                    extra_keys=parent.extra_keys,
                    priority=parent.priority,
                )
            )
        elif action == "abort" and live:
            w.scheduler.abort(data.draw(st.sampled_from(live)).request_id)
        else:
            w.step()
    w.run(max_steps=3000)
    assert w.pool.num_free == w.pool.num_blocks
    for request in live:
        assert request.output == expected(request)
        assert request.finish_reason is not None
        if request.finish_reason is FinishReason.LENGTH:
            assert len(request.output) == request.max_tokens


def test_equal_priorities_start_in_order_of_arrival(world: Worlds) -> None:
    w = world(num_blocks=20, max_num_seqs=3)
    requests = []
    for seed in range(12):
        requests.append(w.add(prompt(5 + 3 * (seed % 4), seed), max_tokens=3 + seed % 5))
        w.step()
    w.run()
    starts = [request.first_scheduled for request in requests]
    assert starts == sorted(starts)
