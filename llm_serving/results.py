"""What a whole generation gave: deltas put together, with the times at which they came."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vtk.errors import VtkError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.engine_loop import Event, Listener
from vtk.llm_serving.sampling.sampler import Sampled


@dataclass(frozen=True)
class Completion:
    """One of the n outputs of a request.

    finish_reason: stop, length, abort or timeout. stop_reason: the stop string or stop token id, None for the model's
    own end; after abort, why the grammar gave the output up. logprobs: one entry a token, where asked.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: tuple[Sampled, ...] | None


@dataclass(frozen=True)
class Timings:
    """Seconds from the request to its first token and to its end; None where no token came."""

    ttft: float | None
    total: float
    num_tokens: int

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of the tokens after the first, all n outputs together; None for fewer than two."""
        if self.ttft is None or self.num_tokens < 2 or self.total <= self.ttft:
            return None
        return (self.num_tokens - 1) / (self.total - self.ttft)


@dataclass(frozen=True)
class GenerationResult:
    """A request with its n outputs. prompt: its text, None where token ids were given."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    num_cached_tokens: int
    prompt_logprobs: tuple[Sampled | None, ...] | None
    timings: Timings

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)


@dataclass
class _Output:
    text: list[str] = field(default_factory=list)
    tokens: list[Sampled] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.ABORT
    stop_reason: str | int | None = None


class Collector:
    """Puts the deltas of one request together. An output that never ends counts as aborted."""

    def __init__(self, generation: Generation, prompt: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.generation = generation
        self._prompt = prompt
        self._clock = clock
        self._outputs = [_Output() for _ in range(generation.params.n)]
        self._num_cached = 0
        self._prompt_logprobs: tuple[Sampled | None, ...] | None = None
        self._start = self._last = clock()
        self._first: float | None = None

    def add(self, delta: Delta) -> None:
        """Take the next delta; the time of the call is the time of its tokens."""
        self._last = self._clock()
        if self._first is None and delta.tokens:
            self._first = self._last
        output = self._outputs[delta.index]
        output.text.append(delta.text)
        output.tokens += delta.tokens
        if delta.index == 0:
            self._num_cached = delta.num_cached
            self._prompt_logprobs = delta.prompt_logprobs or self._prompt_logprobs
        if delta.finish_reason is not None:
            output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason

    def listener(self, on_end: Callable[[VtkError | None], None]) -> Listener:
        """What an EngineLoop tells of the request: deltas are taken, the end is passed on."""

        def listen(event: Event) -> None:
            if isinstance(event, Delta):
                self.add(event)
            else:
                on_end(event)

        return listen

    def result(self) -> GenerationResult:
        """What came so far."""
        num_tokens = sum(len(output.tokens) for output in self._outputs)
        ttft = None if self._first is None else self._first - self._start
        return GenerationResult(
            self.generation.request_id,
            self._prompt,
            tuple(self.generation.prompt),
            tuple(self._completion(index, output) for index, output in enumerate(self._outputs)),
            self._num_cached,
            self._prompt_logprobs,
            Timings(ttft, self._last - self._start, num_tokens),
        )

    def _completion(self, index: int, output: _Output) -> Completion:
        return Completion(
            index,
            "".join(output.text),
            tuple(sampled.token for sampled in output.tokens),
            output.finish_reason.value,
            output.stop_reason,
            tuple(output.tokens) if self.generation.params.logprobs is not None else None,
        )
