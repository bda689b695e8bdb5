"""Tools through the official client; the model is made to write what a trained one would."""

import json
from typing import Any

import openai
import pytest
import xgrammar

from vtk.errors import RequestError
from vtk.server.openai.tool_schemas import ToolFunction
from vtk.server.openai.tools import NamedChoice, NamedFunction, Tool, plan_tools, with_tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"hot": {"$ref": "#/$defs/yes"}},
            "required": ["hot"],
            "$defs": {"yes": {"type": "boolean"}},
        },
    },
}
NOTHING = {"type": "function", "function": {"name": "nothing"}}
TOOLS: Any = [WEATHER, NOTHING]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 400}
HERMES, LLAMA = "{% if tools %}<tool_call>{% endif %}", "{% if tools %}<|python_tag|>{% endif %}"
TOOL = Tool(type="function", function=ToolFunction(name="f"))


def said(text: str) -> dict[str, Any]:
    return {**GREEDY, "tools": TOOLS, "extra_body": {"structured_outputs": {"choice": [text]}}}


def streamed(served: Any, **options: Any) -> tuple[str, list[dict[str, Any]], str]:
    """Put together as a client does: text, calls, finish reason."""
    text, calls, reason = "", [], ""
    for chunk in served.chat(stream=True, **options):
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.index == len(calls):
                assert call.type == "function"
                calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments
    return text, calls, reason


def test_auto_reads_calls_out_of_the_text(served: Any) -> None:
    text = 'I ask.\n<tool_call>\n{"name": "get_weather", "arguments": {"hot": true}}\n</tool_call>'
    choice = served.chat(**said(text)).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I ask."
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "get_weather", '{"hot": true}')
    content, calls, reason = streamed(served, **said(text))
    assert (content, reason) == ("I ask.", "tool_calls")
    assert [(c["name"], c["arguments"]) for c in calls] == [("get_weather", '{"hot": true}')]
    assert calls[0]["id"].startswith("call_")


def test_auto_leaves_plain_text_alone(served: Any) -> None:
    choice = served.chat(**said("No tool < needed")).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (
        "No tool < needed",
        None,
        "stop",
    )
    assert streamed(served, **said("No tool < needed")) == ("No tool < needed", [], "stop")


def test_none_takes_no_calls(served: Any) -> None:
    text = '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>'
    choice = served.chat(**said(text), tool_choice="none").choices[0]
    assert (choice.message.content, choice.message.tool_calls) == (text, None)


def test_strict_holds_a_free_call_to_its_schema(served: Any) -> None:
    """Agents' clients always send `strict`: the text is free, a call is not."""
    strict = {**WEATHER["function"], "strict": True}  # type: ignore[dict-item]
    begin, end = '<tool_call>\n{"name": "get_weather", "arguments": ', "}\n</tool_call>"
    texts = [f"{begin}{arguments}{end}" for arguments in ('{"hot": 1}', '{"hot": false}', '{"cold": true}', "{}")]
    tag = _tag_of([Tool.model_validate({"type": "function", "function": strict}), TOOL])
    assert [_accepts(tag, text) for text in texts] == [False, True, False, False]
    assert _accepts(tag, "Just text, with < and {")
    assert _accepts(tag, f'First.{texts[1]}\n{begin.replace("get_weather", "f")}{{"any": [1]}}{end}')
    assert not _accepts(tag, begin.replace("get_weather", "unknown"))
    tools: Any = [{"type": "function", "function": strict}]
    choice = served.chat(**GREEDY | {"max_tokens": 8}, tools=tools).choices[0]
    assert choice.finish_reason == "length"


def _tag_of(tools: list[Tool], template: str = HERMES) -> str:
    held = plan_tools(tools, "auto", parallel=True, template=template).structured
    assert held is not None
    assert held.structural_tag is not None
    return held.structural_tag


def _accepts(tag: str, text: str) -> bool:
    info = xgrammar.TokenizerInfo(
        [bytes([i]) for i in range(256)] + [b"</s>"], xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[256]
    )
    matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag(tag))
    return all(matcher.accept_token(byte) for byte in text.encode()) and bool(matcher.accept_token(256))


def test_strict_knows_the_other_way_to_write_calls() -> None:
    strict = Tool.model_validate({"type": "function", "function": {**WEATHER["function"], "strict": True}})  # type: ignore[dict-item]
    tag = _tag_of([strict], LLAMA)
    assert _accepts(tag, '{"name": "get_weather", "parameters": {"hot": true}}')
    assert not _accepts(tag, '{"name": "get_weather", "parameters": {"hot": 1}}')
    assert _accepts(tag, '{"answer": 1}')
    wrong = ToolFunction(name="f", strict=True, parameters={"type": "object", "patternProperties": {"a": {}}})
    with pytest.raises(RequestError, match="would not be enforced"):
        plan_tools([Tool(type="function", function=wrong)], None, parallel=True, template=LLAMA)


def test_a_named_function_gets_arguments_that_follow_its_schema(served: Any) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    choice = served.chat(**GREEDY, tools=TOOLS, tool_choice=named).choices[0]
    (call,) = choice.message.tool_calls
    assert isinstance(json.loads(call.function.arguments)["hot"], bool)
    assert (call.function.name, choice.finish_reason, choice.message.content) == ("get_weather", "stop", None)
    text, calls, reason = streamed(served, **GREEDY, tools=TOOLS, tool_choice=named)
    assert (text, reason) == ("", "stop")
    assert calls[0]["arguments"] == call.function.arguments


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_one_of_the_functions(served: Any, parallel: bool) -> None:
    options: dict[str, Any] = {**GREEDY, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel}
    options |= {"logit_bias": {str(token): -100 for token in (198, 201, 197, 220)}}  # no white space for ever
    choice = served.chat(**options).choices[0]
    assert choice.finish_reason == ("tool_calls" if choice.finish_reason != "length" else "length")
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls
    assert len(calls) == 1 or parallel
    for name, arguments in calls[:-1] if choice.finish_reason == "length" else calls:
        assert name in ("get_weather", "nothing")
        assert set(json.loads(arguments)) == ({"hot"} if name == "get_weather" else set())
    _, pieces, reason = streamed(served, **options)
    assert [(c["name"], c["arguments"]) for c in pieces] == calls
    assert reason == choice.finish_reason


def test_a_conversation_with_calls_and_results_goes_on(served: Any) -> None:
    """The template of this model knows no tools: they are written as Hermes models do."""
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"hot": true}'}}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hot?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
    ]
    tokens = served.client.post(
        "/../tokenize", body={"model": "tiny-llama", "messages": messages, "tools": TOOLS}, cast_to=object
    )
    shown = served.client.post(
        "/../detokenize", body={"model": "tiny-llama", "tokens": tokens["tokens"]}, cast_to=object
    )["prompt"]
    assert shown.startswith("system: Be brief.\n\nYou may call functions.")
    assert '"name": "get_weather"' in shown
    assert 'assistant: <tool_call>\n{"name": "get_weather", "arguments": {"hot": true}}\n</tool_call>\n' in shown
    assert "user: <tool_response>\nyes\n</tool_response>\n" in shown
    answer = served.chat(messages, **said("It is."))
    assert answer.usage.prompt_tokens == tokens["count"]
    assert answer.choices[0].message.content == "It is."


def test_wrong_arguments_of_an_earlier_call_are_named(served: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(openai.BadRequestError) as refused:
        served.chat([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}])
    assert refused.value.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("template", "style"), [(None, "hermes"), ("{{ messages }}", "hermes"), (HERMES, "hermes"), (LLAMA, "json")]
)
def test_the_template_says_how_calls_are_written(template: str | None, style: str) -> None:
    assert plan_tools([TOOL], None, parallel=True, template=template).style == style


def test_a_form_that_is_not_read_is_refused_for_auto_alone() -> None:
    template = "{% if tools %}[AVAILABLE_TOOLS]{% endif %}"
    with pytest.raises(RequestError, match="does not read"):
        plan_tools([TOOL], "auto", parallel=True, template=template)
    for choice in ("required", NamedChoice(type="function", function=NamedFunction(name="f"))):
        assert plan_tools([TOOL], choice, parallel=True, template=template).structured is not None  # type: ignore[arg-type]


def test_a_reference_that_would_lead_elsewhere_is_refused() -> None:
    function = ToolFunction(name="f", parameters={"type": "object", "properties": {"a": {"$ref": "#/properties/b"}}})
    with pytest.raises(RequestError, match="refers to"):
        plan_tools([Tool(type="function", function=function)], "required", parallel=True, template=None)


def test_tools_are_told_to_a_conversation_without_a_system_message() -> None:
    messages = with_tools([{"role": "user", "content": "x"}], [{"type": "function", "function": {"name": "f"}}])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert '{"name": "f"}' in messages[0]["content"]
