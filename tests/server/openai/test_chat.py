"""Chat completions through the official client: what is asked is what comes, whole and in pieces."""

import json
from typing import Any

import openai
import pytest

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def forced(text: str, **more: Any) -> dict[str, Any]:
    """Options that let the model write nothing but `text`."""
    return {"temperature": 0, "extra_body": {"structured_outputs": {"choice": [text]}, **more}}


def streamed(served: Any, content: Any = "hello", **options: Any) -> list[Any]:
    return list(served.chat(content, stream=True, **options))


def text_of(chunks: list[Any], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_an_answer_tells_everything(served: Any) -> None:
    answer = served.chat("one two three four", **GREEDY)
    assert (answer.object, answer.model) == ("chat.completion", "tiny-llama")
    assert answer.id.startswith("chatcmpl-")
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason, choice.logprobs) == ("assistant", "length", None)
    prompt = "user: one two three four\nassistant: "
    assert answer.usage.prompt_tokens == len(prompt)  # the tokenizer knows bytes alone, and adds nothing (case L32)
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (12, len(prompt) + 12)
    assert served.complete(prompt, **GREEDY).choices[0].text == choice.message.content


def test_a_stream_says_the_same(served: Any) -> None:
    whole = served.chat(**GREEDY, n=2, seed=5)
    chunks = streamed(served, **GREEDY, n=2, seed=5)
    first = [chunk.choices[0] for chunk in chunks[:2]]
    assert [(c.index, c.delta.role, c.delta.content) for c in first] == [(0, "assistant", ""), (1, "assistant", "")]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    for choice in whole.choices:
        assert text_of(chunks, choice.index) == choice.message.content
    ends = [c.choices[0] for c in chunks if c.choices[0].finish_reason]
    assert sorted((c.index, c.finish_reason) for c in ends) == [(0, "length"), (1, "length")]


def test_usage_comes_in_one_more_chunk_and_only_when_asked(served: Any) -> None:
    """Case L39."""
    plain = streamed(served, **GREEDY)
    assert all(chunk.choices and chunk.usage is None for chunk in plain)
    chunks = streamed(served, **GREEDY, stream_options={"include_usage": True})
    *others, last = chunks
    assert len(chunks) == len(plain) + 1
    assert all(chunk.choices and chunk.usage is None for chunk in others)
    assert last.choices == []
    assert last.usage.completion_tokens == 12
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens // 16 * 16
    growing = streamed(served, **GREEDY, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk.usage.completion_tokens for chunk in growing]
    assert (counts[0], counts[-1], counts) == (0, 12, sorted(counts))


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
def test_the_field_is_null_where_the_usage_comes_later_and_else_not_there(served: Any, path: str) -> None:
    """Case L39, which the client's own objects do not tell apart."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if "chat" in path else {"prompt": "x"}
    body = asked | {"model": "tiny-llama", "max_tokens": 2, "stream": True}

    def chunks(**more: Any) -> list[dict[str, Any]]:
        lines = served.client.post(path, body=body | more, cast_to=str, stream=False)
        *events, done = lines.strip().split("\n\n")
        assert done == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    assert all("usage" not in chunk for chunk in chunks())
    *others, last = chunks(stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in others] == [None] * len(others)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)


def test_samples_follow_their_seed(served: Any) -> None:
    options: dict[str, Any] = {"max_tokens": 16, "temperature": 1.5, "n": 3}
    texts = [[c.message.content for c in served.chat(seed=seed, **options).choices] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert len(set(texts[0])) == 3


def test_cached_tokens_are_told_and_a_salt_keeps_caches_apart(served: Any) -> None:
    """Case L07."""
    text = "a prompt of its own, long enough for three blocks of sixteen tokens each"

    def cached(**body: Any) -> int:
        answer = served.chat(text, **GREEDY, extra_body=body)
        return int(answer.usage.prompt_tokens_details.cached_tokens)

    length = served.chat(text, **GREEDY).usage.prompt_tokens
    assert cached() == (length - 1) // 16 * 16 > 0
    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="b") == 0
    assert cached(cache_salt="a") == (length - 1) // 16 * 16


@pytest.mark.parametrize("stop", ["Pari", ["xyz", "Pari"], ["aris no", "Pari"]])
def test_a_stop_string_across_tokens_is_cut_and_never_streamed(served: Any, stop: Any) -> None:
    """Cases L28 and L34; every token here is one byte."""
    options = forced("I live in Par, not in Paris now") | {"stop": stop}
    choice = served.chat(**options).choices[0]
    assert choice.message.content == "I live in Par, not in "
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "Pari")
    chunks = streamed(served, **options)
    assert text_of(chunks) == choice.message.content
    assert chunks[-1].choices[0].stop_reason == "Pari"
    kept = served.chat(**forced("in Paris", include_stop_str_in_output=True) | {"stop": stop})
    assert kept.choices[0].message.content == "in Pari"


def test_held_text_is_sent_at_the_end(served: Any) -> None:
    """Case L28: what might have become a stop string and did not."""
    options = forced("to the en") | {"stop": "end"}
    chunks = streamed(served, **options)
    assert text_of(chunks) == "to the en"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].stop_reason is None


def test_characters_are_streamed_whole_and_at_once(served: Any) -> None:
    """Cases L29 and L31."""
    text = "🙂你好 🌶 antidisestablishmentarianism"
    chunks = streamed(served, **forced(text))
    pieces = [c.choices[0].delta.content for c in chunks if c.choices[0].delta.content]
    assert pieces == list(text)


def test_log_probabilities_have_the_shape_of_chat(served: Any) -> None:
    """Case L40."""
    options = forced("né") | {"logprobs": True, "top_logprobs": 2}
    content = served.chat(**options).choices[0].logprobs.content
    assert [entry.bytes for entry in content[:3]] == [[0x6E], [0xC3], [0xA9]]
    assert [entry.token for entry in content] == ["n", r"\xc3", r"\xa9", "</s>"]
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content)
    chunks = streamed(served, **options)
    streamed_content = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed_content == content
    alone = served.chat(**GREEDY, logprobs=True).choices[0].logprobs.content
    assert len(alone) == 12
    assert all(entry.top_logprobs == [] for entry in alone)


def test_messages_may_be_of_every_kind(served: Any) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "annotations": [], "audio": None, "function_call": None},
        {"role": "user", "content": "d", "name": "me"},
    ]
    plain = "system: be brief\nuser: a\nb\nassistant: c\nuser: d\nassistant: "
    assert (
        served.chat(messages, **GREEDY).choices[0].message.content == served.complete(plain, **GREEDY).choices[0].text
    )


def test_an_answer_can_be_sent_back(served: Any) -> None:
    message = served.chat(**GREEDY).choices[0].message
    again = [{"role": "user", "content": "hello"}, message.model_dump(), {"role": "user", "content": "more"}]
    assert served.chat(again, **GREEDY).choices[0].finish_reason == "length"


def test_penalties_biases_and_bounds_take_effect(served: Any) -> None:
    plain = served.chat(**GREEDY).choices[0].message.content
    token = served.complete(**GREEDY | {"max_tokens": 1}).choices[0].text
    assert served.chat(**GREEDY, logit_bias={"40": 100}).choices[0].message.content == "I" * 12
    assert (
        served.chat(**GREEDY, logit_bias={"40": 100}, frequency_penalty=2, seed=1).choices[0].message.content[:1] == "I"
    )
    assert token
    for options in ({"temperature": 2.0, "extra_body": {"top_k": 1}}, {"temperature": 2.0, "top_p": 1e-6}):
        assert served.chat(max_tokens=12, **options).choices[0].message.content == plain
    for temperature in (1e-30, 1e-6):  # as good as 0, and no division by it
        assert served.chat(max_tokens=12, temperature=temperature).choices[0].message.content == plain
    assert served.chat(max_tokens=12, temperature=2, extra_body={"min_p": 1.0}).choices[0].message.content == plain
    ended = served.chat(**GREEDY, logit_bias={"257": 100})
    assert (ended.choices[0].finish_reason, ended.choices[0].message.content) == ("stop", "")
    held = served.chat(**GREEDY, logit_bias={"257": 100}, extra_body={"min_tokens": 5})
    assert held.usage.completion_tokens == 6
    ignored = served.chat(**GREEDY, logit_bias={"257": 100}, extra_body={"ignore_eos": True})
    assert ignored.usage.completion_tokens == 12
    shown = served.chat(
        **GREEDY, logit_bias={"257": 100}, extra_body={"ignore_eos": True, "skip_special_tokens": False}
    )
    assert shown.choices[0].message.content == "</s>" * 12
    stopped = served.chat(**GREEDY, logit_bias={"40": 100}, extra_body={"stop_token_ids": [40]})
    assert (stopped.choices[0].finish_reason, stopped.choices[0].stop_reason) == ("stop", 40)
    assert stopped.choices[0].message.content == ""


def test_max_completion_tokens_is_max_tokens(served: Any) -> None:
    assert served.chat(max_completion_tokens=3, temperature=0).usage.completion_tokens == 3
    with pytest.raises(openai.BadRequestError, match="different things"):
        served.chat(max_completion_tokens=3, max_tokens=4)


def test_without_max_tokens_the_context_is_the_bound(served: Any) -> None:
    """Case L43."""
    answer = served.chat("x" * 1900, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage.total_tokens == 2048
    assert answer.choices[0].finish_reason == "length"
