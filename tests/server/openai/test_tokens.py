"""`/tokenize`, `/detokenize` and `/v1/models`."""

from typing import Any

import httpx
import openai
import pytest

MODEL = {"model": "tiny-llama"}


def post(served: Any, path: str, status: int = 200, **body: Any) -> Any:
    response = httpx.post(f"{served.url}{path}", json=MODEL | body)
    assert response.status_code == status, response.text
    return response.json()


def test_a_text_goes_there_and_back(served: Any) -> None:
    text = "héllo 🙂 </s>!"
    answer = post(served, "/tokenize", prompt=text, return_token_strs=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["tokens"][-2] == 257
    assert answer["max_model_len"] == 2048
    assert post(served, "/detokenize", tokens=answer["tokens"]) == {"prompt": text}
    assert post(served, "/tokenize", prompt="")["tokens"] == []


def test_messages_are_what_chat_would_see(served: Any) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = post(served, "/tokenize", messages=messages)["tokens"]
    assert post(served, "/detokenize", tokens=tokens)["prompt"] == "user: hi\nassistant: "
    open_end = post(served, "/tokenize", messages=messages, add_generation_prompt=False)["tokens"]
    assert post(served, "/detokenize", tokens=open_end)["prompt"] == "user: hi\n"
    assert served.chat("hi", max_tokens=1).usage.prompt_tokens == len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_what_cannot_be_done_is_named(served: Any, path: str, body: dict[str, Any], param: str) -> None:
    assert post(served, path, 400, **body)["error"]["param"] == param


def test_models_are_listed_with_what_proves_their_weights(real_served: Any) -> None:
    bundle, model = sorted(real_served.client.models.list().data, key=lambda card: str(card.kind), reverse=True)
    assert (bundle.kind, bundle.task) == ("vision", "embed")
    assert (model.id, model.object, model.owned_by, model.kind) == ("tiny-llama", "model", "vtk", "llm")
    assert model.max_model_len == 2048
    assert len(model.source_sha256) == len(model.tensor_digest) == 64
    assert model.precision
    assert model.created > 1_600_000_000
    assert real_served.client.models.retrieve("tiny-llama") == model
    with pytest.raises(openai.NotFoundError) as missing:
        real_served.client.models.retrieve("nothing")
    assert missing.value.code == "model_not_found"
