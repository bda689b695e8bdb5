"""Tool calls out of text: what is a call, what stays text, and that pieces say what the whole says."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vtk.server.openai.tool_reader import CallPart, Part, ToolReader
from vtk.server.openai.tool_schemas import CallStyle
from vtk.server.openai.tools import ToolPlan

NAMES = frozenset({"f", "get_weather"})
CALL = '{"name": "f", "arguments": {"a": "}{\\"", "b": [1, {}]}}'
ARGUMENTS = '{"a": "}{\\"", "b": [1, {}]}'
OTHER = '{"name": "get_weather", "parameters": {"city": "Köln 🙂"}}'
OTHER_ARGUMENTS = '{"city": "Köln 🙂"}'
SWAPPED = '{"arguments": {"a": 1}, "name": "f"}'


def read(style: CallStyle, pieces: list[str], **plan: Any) -> tuple[str, list[tuple[str, str]]]:
    reader = ToolReader(ToolPlan(style, (), NAMES, **plan))
    parts: list[Part] = [part for piece in pieces for part in reader.push(piece)]
    return merged(parts + reader.finish())


def merged(parts: list[Part]) -> tuple[str, list[tuple[str, str]]]:
    """The text, and (name, arguments) of each call; checks ids and numbers on the way."""
    calls: list[list[str]] = []
    ids: set[str] = set()
    for part in parts:
        if isinstance(part, CallPart):
            if part.name is not None:
                assert part.index == len(calls)
                assert part.id is not None
                assert part.id not in ids
                ids.add(part.id)
                calls.append([part.name, ""])
            calls[part.index][1] += part.arguments
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [(name, arguments) for name, arguments in calls]


TABLE: list[tuple[CallStyle, str, str, list[tuple[str, str]]]] = [
    ("none", f"<tool_call>{CALL}</tool_call>", f"<tool_call>{CALL}</tool_call>", []),
    ("arguments", ARGUMENTS, "", [("f", ARGUMENTS)]),
    ("hermes", "just text <b> { } ", "just text <b> { } ", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("f", ARGUMENTS)]),
    ("hermes", f"Let me see.\n\n<tool_call>{CALL}</tool_call>\n", "Let me see.", [("f", ARGUMENTS)]),
    (
        "hermes",
        f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>",
        "",
        [("f", ARGUMENTS), ("get_weather", OTHER_ARGUMENTS)],
    ),
    ("hermes", f"<tool_call>{SWAPPED}</tool_call> done", " done", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": 3}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", f"<tool_call>{CALL}", "", [("f", ARGUMENTS)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    (
        "hermes",
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", "<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", []),
    ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    ("hermes", "a <tool_cal", "a <tool_cal", []),
    ("hermes", "a <tool_cal<tool_call>" + CALL, "a <tool_cal", [("f", ARGUMENTS)]),
    ("json", CALL, "", [("f", ARGUMENTS)]),
    ("json", f"\n{OTHER}", "", [("get_weather", OTHER_ARGUMENTS)]),
    ("json", f"{CALL}; {OTHER}", "", [("f", ARGUMENTS), ("get_weather", OTHER_ARGUMENTS)]),
    ("json", '{"answer": 42, "name": "f"}', '{"answer": 42, "name": "f"}', []),
    ("json", '{"name": "Bob", "arguments": {}}', '{"name": "Bob", "arguments": {}}', []),
    ("json", f"It is {CALL}", f"It is {CALL}", []),
    ("list", f"[{CALL}]", "", [("f", ARGUMENTS)]),
    ("list", f"[ {CALL} ,\n{OTHER} ]", "", [("f", ARGUMENTS), ("get_weather", OTHER_ARGUMENTS)]),
]


@pytest.mark.parametrize(("style", "text", "content", "calls"), TABLE)
def test_calls_and_text_are_told_apart(style: CallStyle, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text)):
        assert read(style, pieces, named="f") == (content, calls)


@given(st.sampled_from(TABLE), st.lists(st.integers(0, 200), max_size=12))
@example(TABLE[6], [1, 2])
def test_pieces_say_what_the_whole_says(row: Any, cuts: list[int]) -> None:
    style, text, content, calls = row
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert read(style, pieces, named="f") == (content, calls)


@given(st.text(alphabet='{}[]"\\<>tool_call/na:, \n', max_size=80), st.sampled_from(["hermes", "json"]))
def test_no_text_is_lost_where_there_is_no_call(text: str, style: CallStyle) -> None:
    content, calls = read(style, list(text))
    assert not calls
    assert "".join(content.split()) == "".join(text.split())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(JSON)
def test_any_arguments_come_through(value: Any) -> None:
    arguments = json.dumps({"value": value}, ensure_ascii=False)
    call = f'{{"name": "f", "arguments": {arguments}}}'
    assert read("hermes", list(f"<tool_call>{call}</tool_call>")) == ("", [("f", arguments)])
    assert read("list", [f"[{call}]"]) == ("", [("f", arguments)])


def test_arguments_are_streamed_as_they_come() -> None:
    reader = ToolReader(ToolPlan("hermes", (), NAMES))
    assert reader.push('<tool_call>{"name": "f", "arguments": ') == []
    (first,) = reader.push('{"a"')[:1]
    assert isinstance(first, CallPart)
    assert first.name == "f"
    assert reader.push(': "long text') == [CallPart(0, ': "long text')]
    assert reader.push(' that goes on"}') == [CallPart(0, ' that goes on"}')]
    assert reader.push("}</tool_call>") == []


def test_text_is_held_only_while_it_may_begin_a_call() -> None:
    reader = ToolReader(ToolPlan("hermes", (), NAMES))
    assert [reader.push(piece) for piece in ("a b", " ", "c", " <", "t", "x")] == [
        ["a b"],
        [],
        [" c"],
        [],
        [],
        [" <tx"],
    ]


def test_only_so_many_calls_are_kept() -> None:
    text = f"<tool_call>{CALL}</tool_call><tool_call>{OTHER}</tool_call>"
    assert read("hermes", [text], max_calls=1) == ("", [("f", ARGUMENTS)])
