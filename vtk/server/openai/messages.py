"""The messages of a conversation, as a client sends them and as a chat template takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from vtk.server.openai.errors import ParamError
from vtk.server.openai.strict import Body, Items

TemplateMessage = dict[str, Any]


class ContentPart(Body):
    """A piece of a message's text. Language models take no pictures and no sound."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""


class FunctionCall(Body):
    """A function and its arguments, a JSON object as text."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call that the model made in an earlier turn."""

    NOT_OFFERED = {"index": 0}

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Body):
    """One turn. Fields that OpenAI's answers carry are taken back as they are, so that an answer can be sent again."""

    NOT_OFFERED = {"audio": None, "function_call": None, "annotations": []}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Items[ContentPart] = ""
    name: str | None = None
    tool_calls: Items[ToolCall] = []
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


Messages = Annotated[Items[Message], Field(min_length=1)]


def template_messages(messages: Sequence[Message]) -> list[TemplateMessage]:
    """What chat templates know: `developer` is `system`, content is text, arguments are objects."""
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> TemplateMessage:
    role = "system" if message.role == "developer" else message.role
    made: TemplateMessage = {"role": role, "content": _text(message)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            made[name] = value
    if message.tool_calls:
        made["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    return made


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content or message.refusal or ""
    return "\n".join(part.text or part.refusal for part in message.content)


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ParamError(f"{where}.function.arguments", "The arguments of a call are a JSON object as text.") from error
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
