"""What a folder job asks: texts of every picture, and the examples that a file gives for some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vtk.errors import InputError, UsageError
from vtk.segmenting.job_prompts import job_prompts
from vtk.segmenting.prompts import Prompt

BOX, OTHER = (1.0, 2.0, 30.0, 40.0), (5.0, 5.0, 9.0, 9.0)


@pytest.fixture
def box_file(tmp_path: Path) -> Any:
    def write(content: Any) -> Path:
        path = tmp_path / "boxes.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_texts_are_asked_of_every_picture() -> None:
    prompts = job_prompts(["yellow bus", "person"])
    assert prompts.of("a.jpg") == (Prompt("yellow bus"), Prompt("person"))
    assert [(label.category_id, label.name) for label in prompts.labels] == [(1, "yellow bus"), (2, "person")]


def test_examples_are_asked_of_their_picture_only(box_file: Any) -> None:
    path = box_file({
        "in/a.jpg": [{"prompt": "bus", "xyxy": BOX}, {"prompt": "bus", "xyxy": OTHER, "positive": False}],
        "b.jpg": [{"xyxy": BOX, "positive": True}],
    })  # fmt: skip
    prompts = job_prompts(["bus", "cat"], path)
    assert [label.name for label in prompts.labels] == ["bus", "cat", "visual"]
    assert prompts.of("in/a.jpg") == (Prompt("bus", (BOX,), (OTHER,)), Prompt("cat"), None)
    assert prompts.of("b.jpg") == (Prompt("bus"), Prompt("cat"), Prompt(None, (BOX,)))
    assert prompts.of("c.jpg") == (Prompt("bus"), Prompt("cat"), None)


def test_examples_need_no_text(box_file: Any) -> None:
    prompts = job_prompts([], box_file({"b.jpg": [{"xyxy": BOX}]}))
    assert prompts.texts == (None,)
    assert prompts.of("c.jpg") == (None,)


def test_what_is_asked_is_what_the_job_is(box_file: Any) -> None:
    one = job_prompts(["bus"], box_file({"b.jpg": [{"xyxy": BOX}]})).identity
    other = job_prompts(["bus"], box_file({"b.jpg": [{"xyxy": OTHER}]})).identity
    assert one != other
    assert one == job_prompts(["bus"], box_file({"b.jpg": [{"xyxy": BOX}]})).identity
    assert job_prompts(["bus"]).identity == {"texts": ["bus"], "boxes_sha256": None}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"a.jpg": ' + "[" * 100_000,
        '"text"',
        {"a.jpg": [{"prompt": "bus"}]},
        {"a.jpg": [{"xyxy": [1, 2, 3]}]},
        {"a.jpg": [{"xyxy": "abcd"}]},
        {"a.jpg": [{"xyxy": BOX, "label": 1}]},
        {"a.jpg": [{"xyxy": BOX, "positive": "no"}]},
        {"a.jpg": [{"xyxy": BOX, "prompt": 7}]},
        {"a.jpg": [7]},
        {"a.jpg": 7},
    ],
)
def test_a_file_of_something_else_is_refused(box_file: Any, content: Any) -> None:
    with pytest.raises(InputError, match="holds no examples"):
        job_prompts(["bus"], box_file(content))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no examples"):
        job_prompts(["bus"], tmp_path / "none.json")


def test_prompts_that_cannot_be_are_refused(box_file: Any) -> None:
    with pytest.raises(UsageError, match="asked for nothing"):
        job_prompts([])
    with pytest.raises(UsageError, match="given twice"):
        job_prompts(["yellow bus", "yellow  bus"])
    with pytest.raises(UsageError, match=r"'cat' in 'a\.jpg', which is no prompt"):
        job_prompts(["bus"], box_file({"a.jpg": [{"prompt": "cat", "xyxy": BOX}]}))
    with pytest.raises(UsageError, match="needs a text"):
        job_prompts([], box_file({"a.jpg": [{"xyxy": BOX, "positive": False}]}))
    with pytest.raises(UsageError, match="area above 0"):
        job_prompts(["bus"], box_file({"a.jpg": [{"prompt": "bus", "xyxy": [3, 3, 1, 1]}]}))
