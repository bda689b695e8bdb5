"""Ten thousand requests that are dropped, time out, fork and preempt each other: not one block stays behind."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from vtk.llm_serving.core.request import ExtraKey, FinishReason, Request

Worlds = Callable[..., Any]
Expected = Callable[[Request], list[int]]
REQUESTS = 2_500


def arrive(w: Any, rng: random.Random, live: list[Request], forks: bool) -> Request:
    """A request with a beginning that others share, or a fork of one that is live."""
    if forks and live and rng.random() < 0.2:
        parent = rng.choice(live)
        own = {"priority": parent.priority, "extra_keys": parent.extra_keys}
        return w.add(list(parent.prompt), max_tokens=6, fork_of=parent, **own)
    stem = random.Random(rng.randrange(4)).choices(range(1000), k=rng.randint(1, 24))
    return w.add(
        stem + rng.choices(range(3), k=rng.randint(0, 4)),
        max_tokens=rng.randint(1, 16),
        priority=rng.randrange(3),
        queue_timeout=rng.choice([None, None, 12.0]),
        extra_keys=rng.choice([(), (), (ExtraKey("salt", "s"),)]),
    )


@pytest.mark.parametrize(
    "config",
    [
        {"scheduling_policy": "fcfs"},
        {"scheduling_policy": "priority", "watermark": 0.1},
        {"scheduling_policy": "short_first", "long_prefill_token_threshold": 5},
        {"scheduling": "static"},
    ],
    ids=lambda config: config.get("scheduling_policy", "static"),
)
def test_every_block_is_free_after_a_storm(world: Worlds, expected: Expected, config: dict[str, Any]) -> None:
    """Case L20."""
    rng = random.Random(str(config))
    is_static = config.get("scheduling") == "static"
    w = world(
        num_blocks=24, max_num_seqs=6, max_num_batched_tokens=24, max_model_len=60, caching=not is_static, **config
    )
    requests: list[Request] = []
    live: list[Request] = []
    while len(requests) < REQUESTS:
        for _ in range(rng.choice([0, 1, 1, 2])):
            requests.append(arrive(w, rng, live, forks=not is_static))
            live.append(requests[-1])
        for request in live:
            if rng.random() < 0.02:
                w.scheduler.abort(request.request_id)
        w.step()
        live = [request for request in live if request.finish_reason is None]
    w.run()
    assert w.pool.num_free == w.pool.num_blocks
    assert w.scheduler.num_waiting == w.scheduler.num_running == 0
    reasons = Counter(request.finish_reason for request in requests)
    assert min(reasons[kind] for kind in (FinishReason.LENGTH, FinishReason.ABORT, FinishReason.TIMEOUT)) > 50, reasons
    assert is_static or w.scheduler.num_preemptions > 50
    assert all(request.output == expected(request) for request in requests)
