"""What a language model does before it is ready: a prefill, decodes, and the prefixes that are asked for most."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from vtk.llm_serving.engine import Generation
from vtk.llm_serving.engine_loop import EngineLoop
from vtk.llm_serving.sampling.params import SamplingParams

MAX_REPLAY_SECONDS = 10.0
WARMUP_TOKENS = 64
_names = itertools.count()


def warm_up_language(
    loop: EngineLoop,
    prefixes: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    max_model_len: int,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """One prefill and two decodes, then the prefixes until `MAX_REPLAY_SECONDS` are over; how many were computed.

    The most frequent come first, and what they leave in the prefix cache is what the first users would wait for.
    """
    length = min(WARMUP_TOKENS, max_model_len - 3)
    _compute(loop, [0] * max(length, 1), max_tokens=min(3, max_model_len - 1), salt="warm-up")
    deadline = clock() + MAX_REPLAY_SECONDS
    done = 0
    for prefix in prefixes:
        ids = prefix[: max_model_len - 1]
        if clock() >= deadline or not ids or max(ids) >= vocab_size:
            continue
        _compute(loop, ids, max_tokens=1, salt=None)
        done += 1
    return done


def _compute(loop: EngineLoop, prompt: Sequence[int], *, max_tokens: int, salt: str | None) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    generation = Generation(f"warm-up-{next(_names)}", prompt, params, cache_salt=salt)
    for _ in loop.stream(generation):
        pass
