"""What a language model does before it is ready: a prefill, decodes, and the prefixes that are asked for most."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from vtk.llm_serving.engine import Generation
from vtk.llm_serving.engine_loop import EngineLoop
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.serving.traffic_watch import WARM_UP

MAX_REPLAY_SECONDS = 10.0
WARMUP_TOKENS = 64
WARMUP_OUTPUT = 3
_names = itertools.count()


def warm_up_language(loop: EngineLoop, *, max_model_len: int) -> None:
    """One prefill and two decodes."""
    length = max(1, min(WARMUP_TOKENS, max_model_len - WARMUP_OUTPUT))
    _compute(loop, [0] * length, max_tokens=min(WARMUP_OUTPUT, max_model_len - 1), salt=WARM_UP)


def replay(
    loop: EngineLoop,
    prefixes: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    max_model_len: int,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Compute prefixes, the first ones first, until `MAX_REPLAY_SECONDS` are over; how many are in the cache now.

    One that the model cannot compute, too long or with token ids that it does not have, is passed over.
    """
    deadline = clock() + MAX_REPLAY_SECONDS
    done = 0
    for prefix in prefixes:
        if clock() >= deadline:
            break
        if len(prefix) < max_model_len and max(prefix) < vocab_size:
            _compute(loop, prefix, max_tokens=1, salt=None)
            done += 1
    return done


def _compute(loop: EngineLoop, prompt: Sequence[int], *, max_tokens: int, salt: str | None) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    generation = Generation(f"{WARM_UP}-{next(_names)}", prompt, params, cache_salt=salt)
    for _ in loop.stream(generation):
        pass
