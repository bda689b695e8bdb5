"""Tools that a client offers: what the model is told of them, and what its output is held to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vtk.llm_serving.sampling.structured import StructuredOutputsParams
from vtk.server.openai.errors import ParamError
from vtk.server.openai.messages import TemplateMessage
from vtk.server.openai.strict import Body
from vtk.server.openai.tool_schemas import (
    NO_PARAMETERS,
    CallStyle,
    ToolFunction,
    call_list_schema,
    free_text_with_calls,
)

_MENTIONS_TOOLS = re.compile(r"\btools\b")


class Tool(Body):
    """A tool; every one is a function."""

    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Body):
    """The name alone."""

    name: str


class NamedChoice(Body):
    """The model must call this function."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedChoice


@dataclass(frozen=True)
class ToolPlan:
    """How one request uses its tools.

    style: how calls are written in the output: none at all, Hermes' `<tool_call>` blocks or Llama's plain JSON in free
    text, or, where the output is held to it, a JSON `list` of calls or the `arguments` of the one function `named`.
    tools: what the template is told. names: the functions that may be called. structured: what holds the output.
    """

    style: CallStyle = "none"
    tools: tuple[dict[str, Any], ...] = ()
    names: frozenset[str] = frozenset()
    named: str = ""
    max_calls: int | None = None
    structured: StructuredOutputsParams | None = None


def plan_tools(tools: Sequence[Tool], choice: ToolChoice | None, *, parallel: bool, template: str | None) -> ToolPlan:
    """Check the tools against the choice and the model's chat template. Raises ParamError."""
    if not tools:
        if choice not in (None, "none"):
            raise ParamError("tool_choice", "'tool_choice' is only allowed when 'tools' are given.")
        return ToolPlan()
    if choice == "none":
        return ToolPlan()
    described = tuple(_described(tool) for tool in tools)
    names = frozenset(tool.function.name for tool in tools)
    if len(names) < len(tools):
        raise ParamError("tools", "Two tools have the same name.")
    limit = None if parallel else 1
    if isinstance(choice, NamedChoice):
        held = StructuredOutputsParams(json=_named(tools, choice).parameters or NO_PARAMETERS)
        return ToolPlan("arguments", described, names, choice.function.name, 1, held)
    if choice == "required":
        held = StructuredOutputsParams(json=call_list_schema([tool.function for tool in tools], limit))
        return ToolPlan("list", described, names, "", limit, held)
    style = _style_of(template)
    functions = [tool.function for tool in tools]
    if not any(function.strict for function in functions):
        return ToolPlan(style, described, names, "", limit)
    return ToolPlan(style, described, names, "", limit, free_text_with_calls(functions, style))


def takes_tools(template: str | None) -> bool:
    """Whether a chat template writes tools into the prompt by itself."""
    return template is not None and _MENTIONS_TOOLS.search(template) is not None


def with_tools(messages: list[TemplateMessage], tools: Sequence[dict[str, Any]]) -> list[TemplateMessage]:
    """The conversation for a template that knows no tools: they, calls and results are written as Hermes models do."""
    first, rest = (messages[0], messages[1:]) if messages[0]["role"] == "system" else ({"content": ""}, messages)
    signatures = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = (
        f"You may call functions. These are their JSON signatures:\n{signatures}\n"
        'Write each call as\n<tool_call>\n{"name": "the function", "arguments": {}}\n</tool_call>'
    )
    content = f"{first['content']}\n\n{told}" if first["content"] else told
    return [{"role": "system", "content": content}, *(_as_text(message) for message in rest)]


def _as_text(message: TemplateMessage) -> TemplateMessage:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [
        f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))}


def _style_of(template: str | None) -> CallStyle:
    if template is None or not takes_tools(template) or "<tool_call>" in template:
        return "hermes"
    if "python_tag" in template or '"parameters"' in template:
        return "json"
    raise ParamError(
        "tool_choice",
        "The model's chat template writes tool calls in a form that vtk does not read.",
        hint="Set tool_choice to 'required' or to one function.",
    )


def _described(tool: Tool) -> dict[str, Any]:
    """For the template: as the client sent it, without `strict`, which no model was trained on."""
    function = {"name": tool.function.name, "description": tool.function.description}
    return {"type": "function", "function": {**function, "parameters": tool.function.parameters}}


def _named(tools: Sequence[Tool], choice: NamedChoice) -> ToolFunction:
    for tool in tools:
        if tool.function.name == choice.function.name:
            return tool.function
    raise ParamError("tool_choice", f"'tools' has no function '{choice.function.name}'.")
