"""Which requests can be served at all. Depends on limits that never change, so any thread may ask."""

from __future__ import annotations

from vtk.errors import RequestError
from vtk.llm_serving.core.config import SchedulerConfig


def check_fits(prompt_length: int, max_tokens: int, config: SchedulerConfig, num_blocks: int) -> None:
    """Raise RequestError, with both numbers, for a request that could never be finished."""
    if prompt_length < 1 or max_tokens < 1:
        raise RequestError("invalid_request", "A request needs at least one prompt token and max_tokens of 1.")
    wanted = prompt_length + max_tokens
    if wanted > config.max_model_len:
        raise RequestError(
            "context_length_exceeded",
            f"The prompt has {prompt_length} tokens and max_tokens is {max_tokens}; together they "
            f"exceed the context of {config.max_model_len} tokens.",
            hint="Shorten the prompt or lower max_tokens.",
        )
    # The token sampled last is never computed, so it needs no slot.
    capacity = num_blocks * config.block_size
    if wanted - 1 > capacity:
        raise RequestError(
            "context_length_exceeded",
            f"The request needs KV for {wanted - 1} tokens and the whole pool holds {capacity}.",
            hint="Shorten the prompt, lower max_tokens, or give the KV cache more memory.",
        )
