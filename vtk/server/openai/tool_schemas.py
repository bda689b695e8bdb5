"""What holds an output to the schemas of the functions that it may call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from vtk.llm_serving.sampling.json_schema import check_schema
from vtk.llm_serving.sampling.structured import StructuredOutputsParams
from vtk.server.openai.errors import ParamError
from vtk.server.openai.strict import Body

CallStyle = Literal["none", "hermes", "json", "list", "arguments"]
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
# What begins a call, the key of its arguments, what ends it.
_MARKS = {"hermes": ("<tool_call>\n", "arguments", "\n</tool_call>"), "json": ("", "parameters", "")}


class ToolFunction(Body):
    """A function: its name, what it does, and the JSON schema of its arguments.

    strict: its arguments follow the schema also where the model is free to call it or not.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    parameters: dict[str, Any] = NO_PARAMETERS
    strict: bool = False


def free_text_with_calls(functions: Sequence[ToolFunction], style: CallStyle) -> StructuredOutputsParams:
    """Any text, in which each call is one of the functions, and follows its schema where that is strict."""
    begin, key, end = _MARKS[style]
    tags = []
    for function in functions:
        if function.strict:
            check_schema(json.dumps(function.parameters))
        content = {"type": "json_schema", "json_schema": function.parameters if function.strict else True}
        head = f'{begin}{{"name": "{function.name}", "{key}": '
        tags.append({"type": "tag", "begin": head, "content": content, "end": f"}}{end}"})
    trigger = begin.strip() or '{"name": "'
    form = {"type": "triggered_tags", "triggers": [trigger], "tags": tags}
    return StructuredOutputsParams(structural_tag=json.dumps({"type": "structural_tag", "format": form}))


def call_list_schema(functions: Sequence[ToolFunction], limit: int | None) -> dict[str, Any]:
    """A list of one or more calls {"name", "arguments"}; what the schemas define stands at the root."""
    calls: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
    for i, function in enumerate(functions):
        own = dict(function.parameters or NO_PARAMETERS)
        for keyword in ("$defs", "definitions"):
            definitions |= {f"{i}.{keyword}.{name}": _moved(item, i) for name, item in _items(own.pop(keyword, {}))}
        properties = {"name": {"const": function.name}, "arguments": _moved(own, i)}
        required = ["name", "arguments"]
        calls.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
    return schema if limit is None else {**schema, "maxItems": limit}


def _items(definitions: Any) -> list[tuple[str, Any]]:
    if not isinstance(definitions, dict):
        raise ParamError("tools", "The definitions of a schema must be an object.")
    return list(definitions.items())


def _moved(schema: Any, which: int) -> Any:
    """The schema with its references led to where `call_list_schema` puts the definitions of function `which`."""
    if isinstance(schema, list):
        return [_moved(item, which) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, which) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        keyword, _, name = reference.removeprefix("#/").partition("/")
        if keyword not in ("$defs", "definitions"):
            raise ParamError("tools", f"A schema refers to '{reference}'; a required call knows '#/$defs/…' only.")
        moved["$ref"] = f"#/$defs/{which}.{keyword}.{name}"
    return moved
