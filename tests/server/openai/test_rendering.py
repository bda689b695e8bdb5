"""How a conversation becomes a prompt, beyond messages and tools."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from tokenizers.processors import TemplateProcessing

from vtk.llm_serving.tokenizer.bounded_values import EndlessError
from vtk.llm_serving.tokenizer.chat_template import ChatTemplate

TURNS = [{"role": "user", "content": "Name three."}, {"role": "assistant", "content": "One, "}]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{% if thinks is defined %} thinks={{ thinks }}{% endif %}"
)


def prompt_of(served: Any, messages: Any = TURNS, **body: Any) -> str:
    """The prompt as text; chat must see as many tokens."""
    sent = {"model": "tiny-llama", "messages": messages, **body}
    tokens = httpx.post(f"{served.url}/tokenize", json=sent).json()["tokens"]
    chat = served.chat(messages, max_tokens=1, extra_body=body)
    assert chat.usage.prompt_tokens == len(tokens)
    shown = httpx.post(f"{served.url}/detokenize", json={"model": "tiny-llama", "tokens": tokens})
    return str(shown.json()["prompt"])


def test_the_end_of_the_prompt_is_the_clients_choice(served: Any) -> None:
    turns = "user: Name three.\nassistant: One, \n"
    assert prompt_of(served) == turns + "assistant: "
    assert prompt_of(served, add_generation_prompt=False) == turns
    goes_on = prompt_of(served, add_generation_prompt=False, continue_final_message=True)
    assert goes_on == "user: Name three.\nassistant: One,"


@pytest.mark.parametrize("content", ["<", "<e", "end", ">", "assistant", ""])
def test_a_message_goes_on_though_the_template_writes_the_same_after_it(
    serve_with: Callable[..., Any], content: str
) -> None:
    served = serve_with().served
    served.model.tokenizer.template = ChatTemplate(TEMPLATE, {"bos_token": "<s>"})
    turns = [TURNS[0], {"role": "assistant", "content": content}]
    goes_on = prompt_of(served, turns, add_generation_prompt=False, continue_final_message=True)
    assert goes_on == f"[user] Name three.<end>[assistant] {content}"


def test_the_template_gets_its_own_variables(serve_with: Callable[..., Any]) -> None:
    served = serve_with().served
    served.model.tokenizer.template = ChatTemplate(TEMPLATE, {"bos_token": "<s>"})
    assert prompt_of(served, [TURNS[0]]) == "[user] Name three.<end>[assistant]"
    thinking = prompt_of(served, [TURNS[0]], chat_template_kwargs={"thinks": True})
    assert thinking == "[user] Name three.<end>[assistant] thinks=True"
    for name in ("bos_token", "tools", "add_generation_prompt"):
        with pytest.raises(openai.BadRequestError, match=name):
            served.chat(extra_body={"chat_template_kwargs": {name: "x"}})


def test_a_message_that_the_template_changes_cannot_go_on(serve_with: Callable[..., Any]) -> None:
    served = serve_with().served
    served.model.tokenizer.template = ChatTemplate("{{ messages[0].content | upper }}", {})
    with pytest.raises(openai.BadRequestError) as refused:
        served.chat(TURNS[:1], extra_body={"add_generation_prompt": False, "continue_final_message": True})
    assert refused.value.param == "continue_final_message"


def test_a_conversation_has_the_bos_of_its_template_and_no_other(serve_with: Callable[..., Any]) -> None:
    """Case L32: whatever makes the prompt; a plain text gets the one that the tokenizer adds."""
    served = serve_with().served
    tokenizer = served.model.tokenizer
    tokenizer._backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    tokenizer.template = ChatTemplate("{{ bos_token }}" + TEMPLATE, {"bos_token": "<s>"})
    for body in ({}, {"chat_template_kwargs": {"thinks": True}}, {"add_generation_prompt": False}):
        assert prompt_of(served, **body).count("<s>") == 1, body
    assert served.complete("hello", max_tokens=1).usage.prompt_tokens == 1 + len("hello")


@pytest.mark.parametrize("body", [{}, {"chat_template_kwargs": {"thinks": True}}])
def test_a_template_that_does_not_end_holds_up_nobody_and_is_refused(
    serve_with: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    served = serve_with().served
    loops = "{% for i in range(100000) %}" * 3 + "{% endfor %}" * 3
    served.model.tokenizer.template = ChatTemplate(loops, {})
    begun, answered = threading.Event(), threading.Event()

    def step(meter: Any) -> None:
        begun.set()
        assert answered.wait(60)
        raise EndlessError("it takes more than 5 seconds of the processor")

    monkeypatch.setattr("vtk.llm_serving.tokenizer.bounded_jinja.Meter.step", step)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: served.chat(TURNS, extra_body=body))
        assert begun.wait(60)
        assert served.complete("hello", max_tokens=1).usage.completion_tokens == 1
        answered.set()
        with pytest.raises(openai.BadRequestError, match="takes too much: it takes more than 5 seconds"):
            asked.result(60)
    refused = httpx.post(f"{served.url}/tokenize", json={"model": "tiny-llama", "messages": TURNS, **body})
    assert refused.status_code == 400
    assert "takes too much" in refused.json()["error"]["message"]
    monkeypatch.undo()
    served.model.tokenizer.template = ChatTemplate(TEMPLATE, {})
    assert served.chat(TURNS, max_tokens=1).usage.completion_tokens == 1
