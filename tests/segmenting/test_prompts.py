"""Prompts are checked when they are made, and their boxes reach the decoder in fractions of its input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vtk.errors import UsageError
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import Recipe
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.prompts import Prompt, box_slots, labels_of

BOX = (10.0, 20.0, 40.0, 60.0)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "needs a text"),
        ({"negative_boxes_xyxy": (BOX,)}, "needs a text"),
        ({"text": "  \n"}, "empty"),
        ({"text": "\udcff\udcfe"}, "no text"),
        ({"text": "a" * 1001}, "1,001 characters"),
        ({"text": "a", "boxes_xyxy": ((1, 2, 3),)}, r"got \[1, 2, 3\]"),
        ({"boxes_xyxy": ((5, 5, 5, 9),)}, "area above 0"),
        ({"boxes_xyxy": ((5, 9, 7, 1),)}, "area above 0"),
        ({"boxes_xyxy": ((0, 0, math.nan, 1),)}, "area above 0"),
        ({"text": "a", "negative_boxes_xyxy": ((0, 0, math.inf, 1),)}, "area above 0"),
        ({"text": 5}, "is a text, got int"),
        ({"boxes_xyxy": BOX}, r"got 10\.0\. Pass boxes as a list"),
        ({"boxes_xyxy": 5}, "got 5. Pass boxes as a list"),
        ({"boxes_xyxy": ("abcd",)}, "area above 0, got"),
        ({"boxes_xyxy": ((0, 0, 10**400, 1),)}, "area above 0, got"),
        ({"objects": Clicks(((1, 2),), (1,))}, r"Pass Prompt\(objects=\(clicks,\)\)"),
        ({"objects": (((1, 2),),)}, "are Clicks, got tuple"),
    ],
)
def test_a_prompt_that_asks_for_nothing_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Prompt(**values)


def test_lists_and_arrays_are_kept_as_tuples() -> None:
    expected = Prompt("bus", (BOX,), (BOX, BOX))
    boxes = np.array([BOX], np.float32)
    made = Prompt("bus", [list(BOX)], np.concatenate([boxes, boxes]))  # type: ignore[arg-type]
    assert made == expected
    assert hash(made) == hash(expected)
    clicks = Clicks(((1, 2),), (1,))
    assert Prompt(objects=[clicks]) == Prompt(objects=(clicks,))  # type: ignore[arg-type]


def test_results_are_called_what_was_asked_for() -> None:
    labels = labels_of([Prompt(" yellow\t bus ").name, Prompt(boxes_xyxy=(BOX,)).name])
    assert [(label.category_id, label.name) for label in labels] == [(1, "yellow bus"), (2, "visual")]


def test_boxes_take_slots_in_fractions_of_the_input() -> None:
    geometry = geometry_for(Recipe((224, 224)), (100, 200))
    prompt = Prompt("bus", boxes_xyxy=(BOX,), negative_boxes_xyxy=((0, 0, 200, 100),))
    slots = box_slots(prompt, geometry, 4)
    np.testing.assert_allclose(slots.boxes[0, 0], [25 / 200, 40 / 100, 30 / 200, 40 / 100], rtol=1e-6)
    np.testing.assert_allclose(slots.boxes[0, 1], [0.5, 0.5, 1, 1], rtol=1e-6)
    assert slots.labels.tolist() == [[1, 0, -10, -10]]
    assert (slots.boxes.dtype, slots.labels.dtype) == (np.float32, np.int64)


def test_a_text_alone_uses_no_slot() -> None:
    assert box_slots(Prompt("bus"), geometry_for(Recipe((8, 8)), (3, 5)), 8).labels.tolist() == [[-10] * 8]


def test_boxes_are_clipped_to_the_picture_and_refused_outside_of_it() -> None:
    geometry = geometry_for(Recipe((64, 64)), (100, 200))
    slots = box_slots(Prompt(boxes_xyxy=((-50, -1, 100, 50),)), geometry, 8)
    np.testing.assert_allclose(slots.boxes[0, 0], [0.25, 0.25, 0.5, 0.5], rtol=1e-6)
    with pytest.raises(UsageError, match="outside of the picture of 200 x 100"):
        box_slots(Prompt(boxes_xyxy=((200, 0, 300, 50),)), geometry, 8)


def test_more_boxes_than_slots_are_refused() -> None:
    geometry = geometry_for(Recipe((64, 64)), (100, 200))
    prompt = Prompt("bus", boxes_xyxy=(BOX,) * 5, negative_boxes_xyxy=(BOX,) * 4)
    with pytest.raises(UsageError, match="'bus' has 9 boxes; this model takes up to 8"):
        box_slots(prompt, geometry, 8)
