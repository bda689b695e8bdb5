"""SAM3 against the official program, whose outputs on random weights are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtk.exporters.load import LoadedModel

NAMES = {
    "masks": ("pred_masks", 5e-5),
    "boxes_xyxy": ("pred_boxes", 1e-6),
    "logits": ("pred_logits", 5e-6),
    "presence": ("presence_logits", 5e-6),
    "semantic": ("semantic_seg", 5e-5),
}
Answer = Callable[..., dict[str, torch.Tensor]]


def golden_boxes(expected: Any) -> dict[str, torch.Tensor]:
    return {
        "boxes": torch.from_numpy(expected["input_boxes_cxcywh"]),
        "labels": torch.from_numpy(expected["input_boxes_labels"]),
    }


@pytest.mark.parametrize("layout", ["official", "hf"])
@pytest.mark.parametrize("case", ["text", "textbox"])
def test_both_layouts_give_the_official_outputs(
    request: pytest.FixtureRequest, expected: Any, answer: Answer, layout: str, case: str
) -> None:
    model: LoadedModel = request.getfixturevalue(f"{layout}_model")
    assert model.spec.layout == layout
    found = answer(model, expected, **(golden_boxes(expected) if case == "textbox" else {}))
    for name, (stored, limit) in NAMES.items():
        wanted = torch.from_numpy(expected[f"official_{case}_{stored}"]).reshape(found[name].shape)
        assert (found[name] - wanted).abs().max() <= limit, name


def test_a_prompt_without_a_box_is_not_answered_as_transformers_does(
    official_model: LoadedModel, expected: Any, answer: Answer
) -> None:
    """It leaves the geometry encoder out there, which moves boxes by a quarter of the picture."""
    found = answer(official_model, expected)
    assert (found["boxes_xyxy"] - torch.from_numpy(expected["hf_text_pred_boxes"])).abs().max() > 0.2
    assert (found["logits"] - torch.from_numpy(expected["hf_text_pred_logits"])).abs().max() > 0.3


def test_padding_ids_do_not_matter(official_model: LoadedModel, expected: Any, answer: Answer) -> None:
    one, other = (answer(official_model, expected, ids=ids) for ids in ("input_ids", "input_ids_official_pad0"))
    assert all(torch.equal(one[name], other[name]) for name in NAMES)


def test_numbers_in_unused_box_slots_do_not_matter(official_model: LoadedModel, expected: Any, answer: Answer) -> None:
    boxes = torch.rand(1, 8, 4, generator=torch.Generator().manual_seed(3))
    labels = torch.full((1, 8), -10)
    boxes[:, :2], labels[:, :2] = golden_boxes(expected)["boxes"], golden_boxes(expected)["labels"]
    one = answer(official_model, expected, **golden_boxes(expected))
    other = answer(official_model, expected, boxes=boxes, labels=labels)
    assert all(torch.equal(one[name], other[name]) for name in NAMES)


def test_the_order_of_boxes_does_not_matter_and_their_label_does(
    official_model: LoadedModel, expected: Any, answer: Answer
) -> None:
    given = golden_boxes(expected)
    turned = {name: value.flip(1) for name, value in given.items()}
    wrong = {"boxes": given["boxes"], "labels": 1 - given["labels"]}
    one, other, third = (answer(official_model, expected, **prompt) for prompt in (given, turned, wrong))
    for name in NAMES:
        torch.testing.assert_close(one[name], other[name], atol=5e-5, rtol=0)
    assert (one["masks"] - third["masks"]).abs().max() > 0.01
