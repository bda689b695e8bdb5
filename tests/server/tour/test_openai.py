"""The official `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

MODEL = "smollm2"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["place", "sure"],
    "properties": {"place": {"enum": ["city", "river"]}, "sure": {"type": "boolean"}},
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["city"],
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
        },
    },
}


@pytest.fixture(scope="module")
def client(tour: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tour.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models_are_listed_with_what_they_were_made_of(client: openai.OpenAI) -> None:
    cards = {card.id: card.model_dump() for card in client.models.list()}
    assert {name: card["kind"] for name, card in cards.items()} == {
        MODEL: "llm",
        "toy-deim": "vision",
        "tiny-dino": "vision",
    }
    assert all(len(card["source_sha256"]) == 64 for card in cards.values())
    assert client.models.retrieve(MODEL).model_dump() == cards[MODEL]


def test_chat(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=20)
    assert done.choices[0].message.content == ANSWER
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens


def test_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=QUESTION,
            temperature=0,
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *pieces, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == ANSWER
    assert len(pieces) > 3
    assert pieces[-1].choices[0].finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.completion_tokens == 8


def test_log_probabilities_are_of_the_text(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=20, logprobs=True, top_logprobs=2
    )
    told = done.choices[0].logprobs
    assert told is not None
    tokens = told.content or []
    assert "".join(token.token for token in tokens).startswith(ANSWER)
    assert all(token.logprob == max(top.logprob for top in token.top_logprobs) for token in tokens)


def test_output_follows_a_schema(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    done = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Is Paris a city?"}],
        temperature=0,
        max_tokens=200,
        response_format=form,
    )
    told = json.loads(done.choices[0].message.content or "")
    assert told.keys() == {"place", "sure"}
    assert told["place"] in ("city", "river")
    assert isinstance(told["sure"], bool)


def test_a_tool_is_called(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        temperature=0,
        max_tokens=100,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    (call, *_) = done.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})


def test_a_completion_goes_on_with_its_prompt(client: openai.OpenAI) -> None:
    done = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", temperature=0, max_tokens=12, echo=True)
    assert done.choices[0].text.startswith("1, 2, 3, 4, 5, 6, 7")


def test_texts_are_embedded_and_so_are_pictures(client: openai.OpenAI, tour: Any) -> None:
    texts = ["a small boat", "a little ship", "compound interest"]
    answer = client.embeddings.create(model=MODEL, input=texts)
    vectors = np.array([item.embedding for item in answer.data])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    (picture,) = client.embeddings.create(model="tiny-dino", input=[tour.data_url]).data
    assert len(picture.embedding) == 128


def test_errors_are_the_clients_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "word " * 2000}], stream=True)
    assert long.value.code == "context_length_exceeded"
