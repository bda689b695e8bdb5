"""What chat and plain completions have in common: how to sample, when to stop, how to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from vtk.errors import RequestError
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.llm_serving.sampling.structured import StructuredOutputsParams
from vtk.server.openai.errors import ParamError
from vtk.server.openai.formats import FormatFields
from vtk.server.openai.strict import MAX_SHOWN, Body, Items
from vtk.server.settings import Limits

COMMON_NOT_OFFERED: Mapping[str, object] = {
    "allowed_token_ids": [],
    "bad_words": [],
    "best_of": 1,
    "guided_decoding_backend": "auto",
    "kv_transfer_params": {},
    "length_penalty": 1.0,
    "mm_processor_kwargs": {},
    "return_token_ids": False,
    "return_tokens_as_token_ids": False,
    "truncate_prompt_tokens": -1,
    "use_beam_search": False,
}


def _check_biases(sent: Any) -> Any:
    """Refuse at the first wrong value; pydantic would note every one."""
    if isinstance(sent, dict):
        for token, bias in sent.items():
            if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
                raise ParamError(
                    "logit_bias", f"'logit_bias' of token {token[:MAX_SHOWN]} is no number from -100 to 100."
                )
    return sent


LogitBias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_check_biases)]


class StreamOptions(Body):
    """include_usage: one more chunk at the end with the token counts. continuous_usage_stats: in every chunk too."""

    NOT_OFFERED = {"include_obfuscation": False}

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationFields(FormatFields):
    """Names, defaults and meanings are OpenAI's and, beyond them, vLLM's.

    Accepted and without effect on the answer: user, metadata, store, service_tier, safety_identifier,
    prompt_cache_key, prompt_cache_retention, spaces_between_special_tokens (tokens are joined byte by byte).
    """

    NOT_OFFERED: ClassVar[Mapping[str, object]] = COMMON_NOT_OFFERED

    model: str
    n: Annotated[int, Field(ge=1)] = 1
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: LogitBias = {}
    seed: int | None = None
    stop: str | Items[str] = []
    stop_token_ids: Items[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0)] = 0
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = 0
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    spaces_between_special_tokens: bool = True

    @model_validator(mode="after")
    def _check_stream(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise ParamError("stream_options", "'stream_options' is only allowed with 'stream'.")
        return self

    def sampling(
        self,
        limits: Limits,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
        structured: StructuredOutputsParams | None,
    ) -> SamplingParams:
        """What the engine takes. ParamError for values beyond the server's limits or that no engine takes."""
        if self.n > limits.max_n:
            raise ParamError("n", f"n must be at most {limits.max_n}, got {self.n}.")
        if (logprobs or 0) > limits.max_logprobs:
            name = "top_logprobs" if "top_logprobs" in type(self).model_fields else "logprobs"
            raise ParamError(name, f"At most {limits.max_logprobs} log-probabilities a token, got {logprobs}.")
        logit_bias = self._logit_bias()
        try:
            return SamplingParams(
                n=self.n,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=self.repetition_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=logit_bias,
                seed=self.seed,
                max_tokens=max_tokens,
                min_tokens=self.min_tokens,
                stop=self.stop,
                stop_token_ids=tuple(self.stop_token_ids),
                include_stop_str_in_output=self.include_stop_str_in_output,
                ignore_eos=self.ignore_eos,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                skip_special_tokens=self.skip_special_tokens,
                structured_outputs=structured,
            )
        except RequestError as error:
            # Its messages begin with the name of the parameter.
            param = error.message.split()[0]
            raise ParamError(param, error.message, hint=error.hint) from error

    def _logit_bias(self) -> dict[int, float]:
        try:
            return {int(token): bias for token, bias in self.logit_bias.items()}
        except ValueError as error:
            raise ParamError("logit_bias", "The keys of 'logit_bias' are token ids, as decimal numbers.") from error


def check_size(param: str, prompt: object, limits: Limits) -> None:
    """Raise ParamError for a prompt with more characters than the server takes; nothing of it is tokenized then."""
    size = num_characters(prompt)
    if size > limits.max_prompt_chars:
        raise ParamError(
            param,
            f"The prompt has {size} characters; this server takes {limits.max_prompt_chars}.",
            code="string_above_max_length",
        )


def num_characters(value: object) -> int:
    """Characters of all texts in a JSON value; a token id counts as one."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(num_characters(item) for item in value.values())
    if isinstance(value, list):
        return sum(num_characters(item) for item in value)
    return 1
