"""What a folder job asks: texts of every picture, and the examples that a file gives for some."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from vtk.errors import InputError, UsageError
from vtk.segmenting.clicks import Clicks
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
    ("content", "told"),
    [
        ("{", "it is no JSON from line 1, column 2 on"),
        ("[]", "an object with the names of pictures was expected, not []"),
        ('{"a.jpg": ' + "[" * 100_000, "its lists are nested too deeply"),
        ('"text"', 'an object with the names of pictures was expected, not "text"'),
        (
            {"a.jpg": [{"prompt": "bus"}]},
            "'a.jpg', item 0: [left, top, right, bottom] in pixels was expected, not null",
        ),
        ({"a.jpg": [{"xyxy": BOX}, {"xyxy": [1, 2, 3]}]}, "item 1: [left, top, right, bottom] in pixels was expected"),
        ({"a.jpg": [{"xyxy": "abcd"}]}, 'was expected, not "abcd"'),
        ({"a.jpg": [{"xyxy": [1, 2, True, 4]}]}, "was expected, not [1, 2, true, 4]"),
        ({"a.jpg": [{"xyxy": BOX, "label": 1}]}, "there is no field 'label', only positive, prompt, xyxy"),
        ({"a.jpg": [{"xyxy": BOX, "positive": "no"}]}, 'positive is true or false, not "no"'),
        ({"a.jpg": [{"xyxy": BOX, "prompt": 7}]}, "prompt is a text, not 7"),
        ({"a.jpg": [7]}, "'a.jpg', item 0: an object was expected, not 7"),
        ({"a.jpg": 7}, "a list was expected for 'a.jpg', not 7"),
        ('{"a.jpg": [], "b.jpg": [], "a.jpg": []}', "the name 'a.jpg' is there twice in one object"),
        ('{"a.jpg": [{"xyxy": [1, 2, 3, 4], "xyxy": [1, 2, 3, 5]}]}', "the name 'xyxy' is there twice"),
        ({"a.jpg": [{"xyxy": [1, 2, 3, 10**400]}]}, "the whole number 100000000000000000… has 401 digits"),
        ({"a.jpg": [{"xyxy": [1, 2, 3, 10**4000]}]}, "has 4001 digits"),
    ],
)
def test_a_file_of_something_else_is_refused_in_words(box_file: Any, content: Any, told: str) -> None:
    with pytest.raises(InputError, match="holds no examples") as caught:
        job_prompts(["bus"], box_file(content))
    assert told in str(caught.value)
    assert not any(word in str(caught.value) for word in ("NoneType", "attribute", "unpack", "object is not", "str'"))


def test_lists_as_deep_as_json_is_read_are_refused_in_words(box_file: Any) -> None:
    """Some can just be read and not be shown."""
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit()):
        with pytest.raises(InputError, match=r"nested too deeply|was expected, not \[\["):
            job_prompts(["bus"], box_file('{"a.jpg": [{"xyxy": ' + "[" * depth + "]" * depth + "}]}"))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no examples: No such file or directory"):
        job_prompts(["bus"], tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes('{"ä.jpg": []}'.encode("latin-1"))
    with pytest.raises(InputError, match="it is no text in UTF-8"):
        job_prompts(["bus"], tmp_path / "latin.json")


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


def test_objects_are_classes_after_the_texts(box_file: Any) -> None:
    path = box_file({
        "a.jpg": [{"points": [[3, 4]]}, {"points": [[5, 6], [7, 8]], "labels": [1, 0], "name": "dog"}],
        "b.jpg": [{"xyxy": BOX, "name": "dog"}, {"points": [[1, 1]], "name": "dog"}],
    })  # fmt: skip
    prompts = job_prompts(["bus"], points=path)
    first, pair = Clicks(((3, 4),), (1,)), Clicks(((5, 6), (7, 8)), (1, 0))
    assert [label.name for label in prompts.labels] == ["bus", "object", "dog"]
    assert prompts.of("a.jpg") == (Prompt("bus"), Prompt("object", objects=(first,)), Prompt("dog", objects=(pair,)))
    both = Clicks(box_xyxy=BOX), Clicks(((1, 1),), (1,))
    assert prompts.of("b.jpg") == (Prompt("bus"), None, Prompt("dog", objects=both))
    assert prompts.of("c.jpg") == (Prompt("bus"), None, None)


def test_points_and_examples_go_together(box_file: Any, tmp_path: Path) -> None:
    points = tmp_path / "points.json"
    points.write_text(json.dumps({"b.jpg": [{"points": [[1, 1]]}]}))
    prompts = job_prompts([], box_file({"a.jpg": [{"xyxy": BOX}]}), points)
    clicked = Prompt("object", objects=(Clicks(((1, 1),), (1,)),))
    assert [label.name for label in prompts.labels] == ["visual", "object"]
    assert prompts.of("a.jpg") == (Prompt(None, (BOX,)), None)
    assert prompts.of("b.jpg") == (None, clicked)
    assert prompts.of("c.jpg") == (None, None)
    alone = job_prompts([], points=points)
    assert alone.identity == {"texts": [], "boxes_sha256": None, "points_sha256": prompts.points_sha256}


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({}, "'a.jpg', item 0: An object needs a point on it (label 1), a box around it, or both"),
        ({"points": [[1, 2]], "labels": [0]}, "needs a point on it"),
        ({"points": [[1, 2]], "labels": [1, 1]}, "There are 1 points and 2 labels"),
        ({"points": [[1, 2]], "labels": 1}, "labels is a list of 1 and 0, not 1"),
        ({"points": [[1, 2]], "labels": [True]}, "labels is a list of 1 and 0, not [true]"),
        ({"points": [1, 2]}, "[x, y] in pixels was expected, not 1"),
        ({"points": 7}, "points is a list, not 7"),
        ({"points": [[1, 2]], "name": " "}, 'name is a text, not " "'),
        ({"points": [[1, 2]], "prompt": "dog"}, "there is no field 'prompt', only labels, name, points, xyxy"),
        ({"points": [[1, 2]], "xyxy": [3, 3, 1, 1]}, "area above 0"),
    ],
)
def test_what_is_no_object_is_refused_in_words(box_file: Any, item: Any, told: str) -> None:
    with pytest.raises(InputError, match="holds no points") as caught:
        job_prompts([], points=box_file({"a.jpg": [item]}))
    assert told in str(caught.value)


def test_two_classes_of_one_name_are_refused(box_file: Any) -> None:
    path = box_file({"a.jpg": [{"points": [[1, 2]], "name": "yellow  bus"}]})
    with pytest.raises(UsageError, match="two classes of one name"):
        job_prompts(["yellow bus"], points=path)
