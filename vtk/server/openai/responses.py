"""The answers, as plain dictionaries: what is written is what the OpenAPI description shows."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

from vtk.server.openai.logprobs import ChatLogprobs, CompletionLogprobs


class PromptTokensDetails(TypedDict):
    """cached_tokens: tokens of the prompts that the prefix cache gave."""

    cached_tokens: int


class UsageBlock(TypedDict):
    """Tokens of all prompts and all outputs of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class FunctionBlock(TypedDict):
    """arguments: JSON as text."""

    name: str
    arguments: str


class ToolCallBlock(TypedDict):
    """A call that the model wants made."""

    id: str
    type: Literal["function"]
    function: FunctionBlock


class ChatMessage(TypedDict):
    """The model's turn; content is null where there are calls and no text."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[list[ToolCallBlock]]


class ChatChoice(TypedDict):
    """One of the n outputs. stop_reason: the stop string or token id that ended it, null for the model's own end."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None


class ChatCompletion(TypedDict):
    """The answer of /v1/chat/completions without `stream`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBlock


class CompletionChoice(TypedDict):
    """One of the n outputs of one of the prompts, all numbered through."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    stop_reason: str | int | None


class Completion(TypedDict):
    """The answer of /v1/completions without `stream`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBlock


class EmbeddingsUsage(TypedDict):
    """Tokens of all inputs; 0 for pictures."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(TypedDict):
    """embedding: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    """The answer of /v1/embeddings, in the order of the inputs."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingsUsage


class PromptLimits(TypedDict):
    """What a promptable model may be asked at once, and which scores it reports unless told otherwise."""

    max_prompts: int
    max_tokens: int
    max_boxes: int
    score_threshold: float


class ModelCard(TypedDict):
    """A model that is served, and what proves which weights it has."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    kind: str
    task: str
    version: str
    backend: str
    device: str
    precision: str
    source_sha256: str
    tensor_digest: str
    max_model_len: NotRequired[int]
    prompts: NotRequired[PromptLimits]


class ModelList(TypedDict):
    """The answer of /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class Tokens(TypedDict):
    """The answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    """The answer of /detokenize."""

    prompt: str


class ErrorBlock(TypedDict):
    """What went wrong; `param` is the parameter that did, `code` a stable word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """Every failure."""

    error: ErrorBlock


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request cannot be served as asked."},
    404: {"model": ErrorBody, "description": "No such model is served."},
    429: {"model": ErrorBody, "description": "The server is full; see Retry-After."},
    503: {"model": ErrorBody, "description": "The model is starting or going."},
}
