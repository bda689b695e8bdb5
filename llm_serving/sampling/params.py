"""What a caller may ask of one generation. Names, defaults and meanings are those of vLLM and of OpenAI's API."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real

from vtk.errors import RequestError
from vtk.llm_serving.sampling.structured import StructuredOutputsParams

MAX_LOGPROBS = 20
MAX_N = 64
MAX_STOP = 16
GREEDY_BELOW = 1e-5  # as in vLLM: dividing float32 logits by less overflows
MAX_PENALTY = 1e6  # and multiplying them by more, again and again
_WHOLE = ("n", "top_k", "min_tokens")
_WHOLE_OR_NONE = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class SamplingParams:
    """One request's sampling.

    temperature 0, or below GREEDY_BELOW, is greedy. top_k 0 or -1: all tokens. min_p is relative to the likeliest
    token. Penalties follow OpenAI (presence, frequency: over the output) and CTRL (repetition: over prompt and output).
    logprobs: how many alternatives to report beside the chosen token. stop: a string or several that end the output and
    are not part of it. max_tokens None: up to the context. seed None: drawn fresh; with a seed the output does not
    depend on the batch.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self._check_kinds()
        self._within("n", self.n, 1, MAX_N)
        self._within("temperature", self.temperature, 0, math.inf)
        self._within("top_k", self.top_k, -1, math.inf)
        self._within("top_p", self.top_p, 0, 1)
        self._within("min_p", self.min_p, 0, 1)
        self._within("presence_penalty", self.presence_penalty, -2, 2)
        self._within("frequency_penalty", self.frequency_penalty, -2, 2)
        self._within("min_tokens", self.min_tokens, 0, math.inf)
        for name, value in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            self._within(name, value or 0, 0, MAX_LOGPROBS)
        if self.top_p == 0:
            raise RequestError("invalid_request", "top_p must be above 0 and at most 1, got 0.")
        self._within("repetition_penalty", self.repetition_penalty, 1 / MAX_PENALTY, MAX_PENALTY)
        if any(math.isnan(bias) or bias == math.inf for bias in self.logit_bias.values()):
            raise RequestError("invalid_request", "logit_bias holds a value that is infinite or not a number.")
        if self.max_tokens is not None and self.max_tokens < max(1, self.min_tokens):
            raise RequestError(
                "invalid_request",
                f"max_tokens must be at least 1 and not below min_tokens ({self.min_tokens}), got {self.max_tokens}.",
            )
        if len(self.stop_strings) > MAX_STOP or "" in self.stop_strings:
            raise RequestError("invalid_request", f"stop takes up to {MAX_STOP} strings, none of them empty.")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def reads_history(self) -> bool:
        """Some penalty depends on tokens before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_ids(self, vocab_size: int) -> None:
        """Raise RequestError for a token id that a model of `vocab_size` ids does not have."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
            if wrong is not None:
                raise RequestError(
                    "invalid_request", f"Token ids of this model are 0 to {vocab_size - 1}; {name} has {wrong}."
                )

    def _check_kinds(self) -> None:
        for names, kind, what in ((_WHOLE + _WHOLE_OR_NONE, Integral, "a whole number"), (_NUMBERS, Real, "a number")):
            for name in names:
                value = getattr(self, name)
                if not _is_a(value, kind) and not (value is None and name in _WHOLE_OR_NONE):
                    raise RequestError("invalid_request", f"{name} must be {what}, got {value!r}.")
        if not (self.stop is None or isinstance(self.stop, str) or _all_are(self.stop, str)):
            raise RequestError("invalid_request", f"stop takes a string or several, got {self.stop!r}.")
        if not _all_are(self.stop_token_ids, Integral):
            raise RequestError("invalid_request", f"stop_token_ids takes whole numbers, got {self.stop_token_ids!r}.")
        bias = self.logit_bias
        if not isinstance(bias, Mapping) or not (_all_are(bias, Integral) and _all_are(bias.values(), Real)):
            raise RequestError("invalid_request", f"logit_bias takes numbers by token id, got {bias!r}.")
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise RequestError("invalid_request", "structured_outputs takes StructuredOutputsParams.")

    def _within(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high or value == math.inf:
            bounds = f"at least {low}" if high == math.inf else f"from {low} to {high}"
            raise RequestError("invalid_request", f"{name} must be {bounds}, got {value}.")


def _is_a(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _all_are(values: object, kind: type) -> bool:
    """A text is no collection of texts."""
    return (
        isinstance(values, Collection) and not isinstance(values, str) and all(_is_a(value, kind) for value in values)
    )
