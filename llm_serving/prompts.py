"""What a caller may send as a prompt, and the token ids that it means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from vtk.errors import RequestError, UsageError
from vtk.llm_serving.tokenizer.tokenizer import Tokenizer

Conversation: TypeAlias = "Sequence[Mapping[str, Any]]"
Prompt: TypeAlias = "str | Sequence[int] | Conversation"


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts, from one or several. UsageError for what is neither."""
    if isinstance(prompts, str) or _is_list_of(prompts, int) or _is_list_of(prompts, Mapping):
        return [cast("Prompt", prompts)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise UsageError(f"Prompts are a text, token ids, messages, or a list of these; got {type(prompts).__name__}.")
    return list(cast("Sequence[Prompt]", prompts))


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """A list of conversations, from one or several. UsageError for prompts of another kind."""
    conversations = as_prompts(messages)
    if not all(_is_list_of(conversation, Mapping) for conversation in conversations):
        raise UsageError("A conversation is a list of messages, each {'role': …, 'content': …}.")
    return cast("list[Conversation]", conversations)


def encode_prompt(
    prompt: Prompt, tokenizer: Tokenizer, vocab_size: int, *, tools: Sequence[Mapping[str, Any]] | None = None
) -> list[int]:
    """Token ids of a text (with what the tokenizer adds by its own rule), of token ids, or of a conversation.

    vocab_size is the number of rows of the model's embedding. tools: JSON schemas of functions, for the chat template.
    RequestError for anything else.
    """
    if isinstance(prompt, str):
        return _checked_ids(tokenizer.encode(prompt), vocab_size)
    if _is_list_of(prompt, int):
        return _checked_ids(cast("Sequence[int]", prompt), vocab_size)
    if _is_list_of(prompt, Mapping):
        messages = _checked_messages(cast("Conversation", prompt))
        return _checked_ids(tokenizer.encode_chat(messages, tools=tools), vocab_size)
    raise RequestError(
        "invalid_request",
        f"A prompt is a text, a list of token ids or a list of messages, not empty; got {str(prompt)[:80]!r}.",
    )


def _is_list_of(value: object, kind: type) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or not value:
        return False
    return all(isinstance(item, kind) and not isinstance(item, bool) for item in value)


def _checked_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Also of a text: some tokenizers know tokens that were added after their model was trained."""
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError("invalid_request", f"Token ids of this model are 0 to {vocab_size - 1}; got {wrong}.")
    return list(ids)


def _checked_messages(messages: Conversation) -> Conversation:
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str) or not message.keys() & {"content", "tool_calls"}:
            raise RequestError("invalid_request", f"Message {index} needs a 'role' and a 'content'.")
    return messages
