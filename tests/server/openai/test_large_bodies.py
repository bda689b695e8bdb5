"""A body can ask for far more memory than it has bytes: what is wrong in it a million times is noted once."""

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from vtk.errors import RequestError
from vtk.server.json_values import CONTAINER_VALUES
from vtk.server.openai.chat import ChatRequest
from vtk.server.openai.completions import CompletionRequest
from vtk.server.openai.embeddings import EmbeddingRequest
from vtk.server.openai.route import MAX_VALUES
from vtk.server.openai.strict import MAX_ITEMS
from vtk.server.openai.tokens import DetokenizeRequest, TokenizeRequest

MANY = 1000
USER = {"role": "user", "content": "x"}
WRONG: list[Any] = [[], 1.5, {}, {"role": 1}]
LISTS: list[tuple[type[BaseModel], str]] = [
    (ChatRequest, "messages"),
    (ChatRequest, "tools"),
    (ChatRequest, "stop"),
    (ChatRequest, "stop_token_ids"),
    (ChatRequest, "guided_choice"),
    (CompletionRequest, "prompt"),
    (EmbeddingRequest, "input"),
    (TokenizeRequest, "messages"),
    (TokenizeRequest, "tools"),
    (DetokenizeRequest, "tokens"),
]


def num_complaints(kind: type[BaseModel], body: Any) -> int:
    try:
        kind.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    except RequestError:
        return 1
    pytest.fail("nothing was refused")


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize(("kind", "name"), LISTS)
def test_as_many_complaints_about_a_long_list_as_about_a_short_one(
    kind: type[BaseModel], name: str, wrong: Any
) -> None:
    assert num_complaints(kind, {name: [wrong] * MANY}) == num_complaints(kind, {name: [wrong]})


def test_as_many_complaints_about_many_wrong_parts_of_a_message_as_about_one() -> None:
    one, many = ({"messages": [{"role": "user", "content": [{}] * count}]} for count in (1, MANY))
    assert num_complaints(ChatRequest, one) == num_complaints(ChatRequest, many)


def test_one_complaint_about_many_unknown_fields_and_many_wrong_biases() -> None:
    known = {"model": "m", "messages": [USER]}
    assert num_complaints(ChatRequest, known | {f"x{i}": 1 for i in range(MANY)}) == 1
    assert num_complaints(ChatRequest, known | {"logit_bias": {str(i): "x" for i in range(MANY)}}) == 1


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 101, True, "1", None])
def test_a_bias_is_a_number_in_its_range(wrong: Any) -> None:
    assert num_complaints(ChatRequest, {"model": "m", "messages": [USER], "logit_bias": {"1": wrong}}) == 1


def test_a_conversation_of_more_messages_than_any_context_holds_is_refused() -> None:
    assert num_complaints(ChatRequest, {"model": "m", "messages": [USER] * (MAX_ITEMS + 1)}) == 1


@pytest.mark.parametrize(
    "items",
    [
        b"[]," * (MAX_VALUES // CONTAINER_VALUES),
        b"0," * (MAX_VALUES + 1),
        b'"",' * (MAX_VALUES + 1),
        b'"\\\\",' * (MAX_VALUES + 1),
        b'""' * (2 * MAX_VALUES + 1) + b"," * MAX_VALUES,
        b'{"\\"":1},' * (MAX_VALUES // CONTAINER_VALUES),
    ],
    ids=["lists", "numbers", "texts", "backslashes", "quotes", "objects"],
)
def test_a_body_of_more_values_than_any_prompt_is_refused_unparsed(served: Any, items: bytes) -> None:
    body = b'{"model": "tiny-llama", "prompt": [' + items + b"0]}"
    response = httpx.post(f"{served.url}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("The body holds more than 1,048,576 JSON values")


@pytest.mark.parametrize("text", [",", "[{", '\\",', '",', "\\,"])
def test_values_in_a_text_are_no_values(served: Any, text: str) -> None:
    """It is refused for its length, which counts the text."""
    size = MAX_VALUES + 1
    body = json.dumps({"model": "tiny-llama", "prompt": text * size})
    response = httpx.post(f"{served.url}/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.json()["error"]["code"] == "string_above_max_length"
