"""What cannot be served is refused before a stream starts, with the right code and the name of the parameter."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from vtk.server.settings import Limits, ServerSettings

Until = Callable[[Callable[[], Any]], None]
CHAT: dict[str, Any] = {"model": "tiny-llama", "messages": [{"role": "user", "content": "x"}]}
PLAIN: dict[str, Any] = {"model": "tiny-llama", "prompt": "x"}
POSTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
JSON = {"Content-Type": "application/json"}
TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "contentEncoding": "base64"}}}


def refusal(served: Any, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The same error with and without `stream`: a plain answer, never the beginning of a stream (case L15)."""
    errors = []
    for stream in (False, True):
        sent = body | {"stream": stream} if isinstance(body, dict) and "embeddings" not in path else body
        response = httpx.post(f"{served.url}{path}", json=sent)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        errors.append(response.json()["error"])
    assert errors[0] == errors[1]
    assert set(errors[0]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = errors[0]
    return error


@pytest.mark.parametrize(
    ("extra", "param", "code"),
    [
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": True}, "n", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"min_p": 1.5}, "min_p", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"presence_penalty": 3}, "presence_penalty", "invalid_value"),
        ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
        ({"logit_bias": {"258": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "invalid_value"),
        ({"stop_token_ids": [258]}, "stop_token_ids", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"max_tokens": 3, "min_tokens": 4}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"cache_salt": ""}, "cache_salt", "invalid_value"),
        ({"priority": 1}, "priority", "invalid_value"),
        ({"best_of": 2}, "best_of", "unsupported_parameter"),
        ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
        ({"bad_words": ["x"]}, "bad_words", "unsupported_parameter"),
        ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"temprature": 1}, "temprature", "unknown_parameter"),
        ({"response_format": {"type": "xml"}}, "response_format", "invalid_value"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "invalid_value"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "invalid_grammar"),
        (
            {"structured_outputs": {"whitespace_pattern": "a"}},
            "structured_outputs.whitespace_pattern",
            "unknown_parameter",
        ),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "invalid_grammar"),
        ({"guided_grammar": "root ::= nonsense"}, "guided_grammar", "invalid_grammar"),
        ({"guided_json": SCHEMA}, "guided_json", "invalid_grammar"),
    ],
)
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", PLAIN)])
def test_a_parameter_is_refused_by_its_name(
    served: Any, path: str, body: dict[str, Any], extra: dict[str, Any], param: str, code: str
) -> None:
    error = refusal(served, path, body | extra)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert param.split(".")[-1] in error["message"] or "enforced" in error["message"] or "grammar" in error["message"]


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "images": []}]}, "messages[0].images"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"echo": True}, "echo"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_chat_has_alone_is_refused_by_its_name(served: Any, extra: dict[str, Any], param: str) -> None:
    assert refusal(served, "/v1/chat/completions", CHAT | extra)["param"] == param


def test_stream_options_need_a_stream(served: Any) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PLAIN)):
        response = httpx.post(f"{served.url}{path}", json=body | {"stream_options": {"include_usage": True}})
        assert response.json()["error"]["param"] == "stream_options"


def test_null_means_not_sent(served: Any) -> None:
    nulls = dict.fromkeys(("n", "stop", "seed", "tools", "response_format", "best_of", "logprobs", "temperature"))
    response = httpx.post(f"{served.url}/v1/chat/completions", json=CHAT | nulls | {"max_tokens": 1})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize"]
)
def test_a_body_that_is_no_request_is_told_so(served: Any, path: str) -> None:
    bodies = [b"", b"{", b"[]", b"3", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"model": "tiny-llama"}', b"{}"]
    bodies += [b'{"model": NaN}', b'{"model": "a\\ud800"}', b'{"seed": ' + b"9" * 5000 + b"}"]
    for body in bodies:
        response = httpx.post(f"{served.url}{path}", content=body, headers=JSON)
        assert response.status_code == 400, (body[:20], response.text)
        assert response.json()["error"]["message"]
    response = httpx.post(f"{served.url}{path}", content=json.dumps(PLAIN), headers={"Content-Type": "text/plain"})
    assert response.status_code == 400


def test_half_a_surrogate_pair_is_refused_wherever_it_stands(served: Any) -> None:
    lone = "\ud800"
    places: list[dict[str, Any]] = [
        {"model": lone}, {"stop": lone}, {"cache_salt": lone}, {"guided_regex": lone}, {"prompt": lone}, {lone: 1},
    ]  # fmt: skip
    for place in places:
        body = json.dumps(PLAIN | place).encode()
        response = httpx.post(f"{served.url}/v1/completions", content=body, headers=JSON)
        assert response.status_code == 400
        assert "surrogate" in response.json()["error"]["message"]
    whole = json.dumps(PLAIN | {"prompt": "🙂", "max_tokens": 1}).encode()
    assert b"ud83d" in whole
    response = httpx.post(f"{served.url}/v1/completions", content=whole, headers=JSON)
    assert response.status_code == 200


def test_an_unknown_model_is_not_found(served: Any) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", PLAIN)):
        error = refusal(served, path, body | {"model": "../etc"}, 404)
        assert (error["code"], error["type"]) == ("model_not_found", "not_found_error")


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(served: Any) -> None:
    """Case L14, at the edges: a context of 2,048 tokens of one byte."""
    for prompt, max_tokens in ((2300, 1), (2048, 1), (2047, 2)):
        error = refusal(served, "/v1/completions", PLAIN | {"prompt": "x" * prompt, "max_tokens": max_tokens})
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert str(prompt) in error["message"]
        assert "2048" in error["message"]
    with pytest.raises(openai.BadRequestError) as refused:
        served.chat("x" * 2048)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
    fits = served.complete("x" * 2047, max_tokens=1, temperature=0)
    assert fits.usage.total_tokens == 2048


def test_a_request_beyond_the_cache_is_refused_and_the_next_one_served(serve_with: Callable[..., Any]) -> None:
    """Case L13: 32 blocks of 16 tokens."""
    served = serve_with(num_gpu_blocks_override=32).served
    error = refusal(served, "/v1/completions", PLAIN | {"prompt": "x" * 600})
    assert error["code"] == "context_length_exceeded"
    assert "600" in error["message"]
    assert "513" in error["message"]
    assert served.complete("short", max_tokens=2).usage.completion_tokens == 2


def test_a_full_server_says_429_before_a_stream_starts(serve_with: Callable[..., Any], until: Until) -> None:
    running = serve_with(max_num_seqs=1, max_queued=1)
    running.gate.allow(0)
    with ThreadPoolExecutor(2) as others:
        waiting = [others.submit(running.served.complete, max_tokens=1) for _ in range(2)]
        until(lambda: running.served.model.num_open == 2)
        error = refusal(running.served, "/v1/chat/completions", CHAT, 429)
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
        response = httpx.post(f"{running.served.url}/v1/completions", json=PLAIN)
        assert int(response.headers["retry-after"]) >= 1
        running.gate.allow(float("inf"))
        assert [answer.result().usage.completion_tokens for answer in waiting] == [1, 1]


def test_long_prompts_are_refused_before_they_are_tokenized(serve_with: Callable[..., Any]) -> None:
    served = serve_with(ServerSettings(limits=Limits(max_prompt_chars=50, max_n=2, max_logprobs=1))).served
    for path, body, param in (
        ("/v1/completions", PLAIN | {"prompt": "x" * 51}, "prompt"),
        ("/v1/completions", PLAIN | {"prompt": ["x" * 26] * 2}, "prompt"),
        ("/v1/completions", PLAIN | {"logprobs": 2}, "logprobs"),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "x" * 51}]}, "messages"),
        ("/v1/chat/completions", CHAT | {"n": 3}, "n"),
        ("/v1/embeddings", {"model": "tiny-llama", "input": "x" * 51}, "input"),
    ):
        assert refusal(served, path, body)["param"] == param


def test_priorities_reach_the_engine_where_they_count(
    serve_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case L17 is the scheduler's; here the number must arrive."""
    served = serve_with(scheduling_policy="priority").served
    add, seen = served.engine.add, []
    monkeypatch.setattr(served.engine, "add", lambda generation: (seen.append(generation.priority), add(generation)))
    served.complete(["a", "b"], max_tokens=1, extra_body={"priority": -3})
    served.chat(max_tokens=1, extra_body={"priority": 7})
    served.chat(max_tokens=1)
    assert seen == [-3, -3, 7, 0]
