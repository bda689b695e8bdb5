"""What an engine takes and what it gives: requests, and what each step added to their outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.runner.base import HiddenStates
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.sampler import Sampled, TokenMask
from vtk.llm_serving.stats import Timeline


@dataclass(frozen=True)
class Vocabulary:
    """What the engine needs to know of a tokenizer: the bytes of a token, and which tokens end an output."""

    token_bytes: Callable[[int], bytes]
    eos_ids: frozenset[int]
    special_ids: frozenset[int]


@dataclass(frozen=True)
class Generation:
    """One request as the engine takes it. `mask` makes a fresh grammar state for each of its n sequences.

    embed: the first delta brings the mean of the prompt's last hidden states; every prompt token is computed then.
    """

    request_id: str
    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    queue_timeout: float | None = None
    mask: Callable[[], TokenMask] | None = None
    embed: bool = False


@dataclass(frozen=True)
class Delta:
    """What one step added to sequence `index` of a request.

    stop_reason: the stop string or stop token id that ended it, or why its grammar gave it up. num_cached: prompt
    tokens that were not computed. prompt_logprobs come with the first delta: one a prompt token, None for the first.
    timeline and embedding come with the first token.
    """

    request_id: str
    index: int
    tokens: tuple[Sampled, ...]
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached: int = 0
    prompt_logprobs: tuple[Sampled | None, ...] | None = None
    timeline: Timeline | None = None
    embedding: HiddenStates | None = None
