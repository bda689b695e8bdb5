"""Plain completions: many prompts, echo, log-probabilities with offsets."""

from itertools import chain
from typing import Any

import openai
import pytest

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8}


def test_prompts_are_texts_or_token_ids_alone_or_many(served: Any) -> None:
    tokens = served.client.post("/../tokenize", body={"model": "tiny-llama", "prompt": "hello"}, cast_to=object)
    ids = tokens["tokens"]
    one = served.complete("hello", **GREEDY).choices[0].text
    assert served.complete(ids, **GREEDY).choices[0].text == one
    other = served.complete("world", **GREEDY).choices[0].text
    many = served.complete(["hello", "world"], **GREEDY)
    assert [choice.text for choice in many.choices] == [one, other]
    assert many.usage.prompt_tokens == 10
    assert many.usage.completion_tokens == 16
    assert [choice.text for choice in served.complete([ids, ids], **GREEDY).choices] == [one, one]


def test_choices_of_many_prompts_are_numbered_through(served: Any) -> None:
    options: dict[str, Any] = {"n": 2, "seed": 3, "max_tokens": 8}
    whole = served.complete(["hello", "world"], **options)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert whole.usage.completion_tokens == 32
    texts = [""] * 4
    for chunk in served.complete(["hello", "world"], stream=True, **options):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_the_default_is_sixteen_tokens(served: Any) -> None:
    assert served.complete(temperature=0, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


@pytest.mark.parametrize("echo", [False, True])
def test_offsets_go_on_across_chunks(served: Any, echo: bool) -> None:
    """Case L40."""
    text = "né🙂!"
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "logprobs": 1, "echo": echo}
    options["extra_body"] = {"structured_outputs": {"choice": [text]}}
    choice = served.complete("né:", **options).choices[0]
    assert choice.text == ("né:" if echo else "") + text
    logprobs = choice.logprobs
    lengths = {len(getattr(logprobs, name)) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert len(lengths) == 1
    start = 3 if echo else 0
    prompt = [0, 1, 1, 2] if echo else []
    # One byte a token: a token of a character begins where the characters before it end. The last one is the end.
    assert logprobs.text_offset == [*prompt, *(start + at for at in (0, 1, 1, 2, 2, 2, 2, 3, 4))]
    assert logprobs.tokens[-9:-5] == ["n", r"bytes:\xc3", r"bytes:\xa9", r"bytes:\xf0"]
    assert logprobs.tokens[-2:] == ["!", "</s>"]
    assert (logprobs.token_logprobs[0] is None) == echo
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True) if top)
    chunks = list(served.complete("né:", stream=True, **options))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        pieces = [getattr(c.choices[0].logprobs, name) for c in chunks if c.choices[0].logprobs]
        assert list(chain.from_iterable(pieces)) == getattr(logprobs, name), name


def test_a_prompt_can_be_scored_without_an_output(served: Any) -> None:
    """What evaluation harnesses send: echo, max_tokens 0 and logprobs."""
    answer = served.complete("hello", echo=True, max_tokens=0, logprobs=0, temperature=0)
    choice = answer.choices[0]
    assert choice.text == "hello"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 0, 5)
    assert choice.logprobs.tokens == list("hello")
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in choice.logprobs.token_logprobs[1:])
    following = served.complete(
        "hell", max_tokens=1, temperature=0, logprobs=0, extra_body={"structured_outputs": {"choice": ["o"]}}
    )
    assert following.choices[0].logprobs.token_logprobs[0] == pytest.approx(choice.logprobs.token_logprobs[4], abs=1e-5)
    chunks = list(served.complete("hello", echo=True, max_tokens=0, logprobs=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "hello"


def test_echo_begins_each_choice_of_a_stream(served: Any) -> None:
    texts = [""] * 4
    for chunk in served.complete(["ab", "cd"], n=2, echo=True, stream=True, max_tokens=3, seed=1):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [text[:2] for text in texts] == ["ab", "ab", "cd", "cd"]
    ids = served.client.post("/../tokenize", body={"model": "tiny-llama", "prompt": "hé"}, cast_to=object)["tokens"]
    assert served.complete(ids, echo=True, **GREEDY).choices[0].text.startswith("hé")


def test_an_empty_prompt_and_a_suffix_are_refused(served: Any) -> None:
    for prompt, options, param in (("", {}, "prompt"), ("x", {"suffix": "end"}, "suffix"), (["x", ""], {}, "prompt")):
        with pytest.raises(openai.BadRequestError) as refused:
            served.complete(prompt, **options)
        assert refused.value.param == param
    assert "Prompt 1" in str(refused.value)
