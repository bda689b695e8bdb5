"""Tools that a client offers: what the model is told of them, and what its output is held to."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from vtk.llm_serving.sampling.structured import StructuredOutputsParams
from vtk.server.openai.errors import ParamError
from vtk.server.openai.messages import TemplateMessage
from vtk.server.openai.strict import Body

CallStyle = Literal["none", "hermes", "json", "list", "arguments"]
_MENTIONS_TOOLS = re.compile(r"\btools\b")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class ToolFunction(Body):
    """A function: its name, what it does, and the JSON schema of its arguments."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    parameters: dict[str, Any] = _NO_PARAMETERS
    strict: bool = False


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
        return ToolPlan("arguments", described, names, choice.function.name, 1, _one_schema(tools, choice))
    if choice == "required":
        return ToolPlan("list", described, names, "", limit, _list_schema(tools, limit))
    return ToolPlan(_style_of(template), described, names, "", limit)


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


def _one_schema(tools: Sequence[Tool], choice: NamedChoice) -> StructuredOutputsParams:
    found = next((tool for tool in tools if tool.function.name == choice.function.name), None)
    if found is None:
        raise ParamError("tool_choice", f"'tools' has no function '{choice.function.name}'.")
    return StructuredOutputsParams(json=found.function.parameters or _NO_PARAMETERS)


def _list_schema(tools: Sequence[Tool], limit: int | None) -> StructuredOutputsParams:
    """A list of one or more calls {"name", "arguments"}; what the schemas define stands at the root."""
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for i, tool in enumerate(tools):
        own = dict(tool.function.parameters or _NO_PARAMETERS)
        for keyword in ("$defs", "definitions"):
            for name, schema in own.pop(keyword, {}).items():
                definitions[f"{i}.{keyword}.{name}"] = _moved(schema, i)
        properties = {"name": {"const": tool.function.name}, "arguments": _moved(own, i)}
        required = ["name", "arguments"]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
    return StructuredOutputsParams(json=schema if limit is None else {**schema, "maxItems": limit})


def _moved(schema: Any, which: int) -> Any:
    """The schema with its references led to where `_list_schema` puts the definitions of tool `which`."""
    if isinstance(schema, list):
        return [_moved(item, which) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, which) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        keyword, _, name = reference.removeprefix("#/").partition("/")
        if keyword not in ("$defs", "definitions"):
            raise ParamError(
                "tools", f"A schema refers to '{reference}'; with tool_choice 'required' only '#/$defs/…'."
            )
        moved["$ref"] = f"#/$defs/{which}.{keyword}.{name}"
    return moved
