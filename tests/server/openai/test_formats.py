"""Outputs of a given form, under every name that OpenAI and vLLM have for it."""

import json
import re
from typing import Any

import pydantic
import pytest

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
OPTIONS: dict[str, Any] = {"temperature": 1.5, "seed": 4, "max_tokens": 300}
NO_SPACE = {str(token): -100 for token in (198, 201, 197, 220)}
REGEX, GRAMMAR = r"[a-f]{3}-(x|yy)\d{1,4}", 'root ::= "ab" | "cd" root'


class Thing(pydantic.BaseModel):
    ok: bool
    kind: str


def follows_schema(text: str) -> bool:
    value = json.loads(text)
    return isinstance(value["ok"], bool) and value["kind"] in ("a", "b") and len(value) == 2


FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}}}, follows_schema),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}}},
        follows_schema,
    ),
    ({"structured_outputs": {"json": SCHEMA}}, follows_schema),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, follows_schema),
    ({"guided_json": SCHEMA}, follows_schema),
    ({"structured_outputs": {"regex": REGEX}}, re.compile(REGEX).fullmatch),
    ({"guided_regex": REGEX}, re.compile(REGEX).fullmatch),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}.__contains__),
    ({"guided_choice": ["yes", "no"]}, {"yes", "no"}.__contains__),
    ({"structured_outputs": {"grammar": GRAMMAR}}, re.compile("(cd)*ab").fullmatch),
    ({"guided_grammar": GRAMMAR}, re.compile("(cd)*ab").fullmatch),
]


@pytest.mark.parametrize(("form", "follows"), FORMS)
def test_the_output_has_the_form(served: Any, form: dict[str, Any], follows: Any) -> None:
    chat = served.chat(**OPTIONS, logit_bias=NO_SPACE, extra_body=form).choices[0]
    assert chat.finish_reason == "stop"
    assert follows(chat.message.content)
    plain = served.complete(**OPTIONS, logit_bias=NO_SPACE, n=2, extra_body=form)
    assert all(follows(choice.text) for choice in plain.choices)


@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_json_object(served: Any, form: dict[str, Any]) -> None:
    bias = NO_SPACE | {"90": 50, "92": 50}  # braces, so that a random model comes to the object's end
    choice = served.chat(**OPTIONS, logit_bias=bias, extra_body=form).choices[0]
    assert choice.finish_reason == "stop"
    assert isinstance(json.loads(choice.message.content), dict)


def test_the_client_parses_into_a_class(served: Any) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    parsed = served.client.chat.completions.parse(
        model="tiny-llama", messages=messages, response_format=Thing, **OPTIONS, logit_bias=NO_SPACE
    )
    assert isinstance(parsed.choices[0].message.parsed, Thing)


def test_any_text_is_the_default(served: Any) -> None:
    texts = [
        served.chat(temperature=0, max_tokens=5, extra_body=body).choices[0].message.content
        for body in ({}, {"response_format": {"type": "text"}})
    ]
    assert texts[0] == texts[1]
