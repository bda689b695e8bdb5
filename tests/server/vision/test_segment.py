"""`/v1/vision/segment` with a promptable model: prompts as JSON and form, boxes, masks, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtk.bundle import read_bundle
from vtk.postprocess.rle import paint, unpack_counts
from vtk.preprocess.decode import decode
from vtk.segmenting.predictor import open_segment_predictor
from vtk.segmenting.prompts import Prompt
from vtk.serving.arbiter import Arbiter
from vtk.serving.segment_model import SegmentModel

Serve = Callable[..., Any]
Encode = Callable[..., bytes]
BOX = [2.0, 3.0, 20.0, 15.0]


@pytest.fixture
def model(prompted_bundle: Path) -> SegmentModel:
    """Closed by the server."""
    parts = open_segment_predictor(read_bundle(prompted_bundle), backend="ort", threads=1)
    return SegmentModel(parts, Arbiter(), name="sam")


@pytest.fixture
def served(serve: Serve, model: SegmentModel) -> Any:
    return serve(model)


@pytest.fixture
def picture(encode: Encode) -> bytes:
    return encode((200, 90, 10), (48, 32))


@pytest.fixture
def images(picture: bytes) -> Iterator[list[str]]:
    return [base64.b64encode(picture).decode()]


def told(response: Any, status: int = 400) -> str:
    assert response.status_code == status, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_prompts_are_answered_with_boxes_and_masks(
    served: Any, model: SegmentModel, picture: bytes, images: Any
) -> None:
    answer = served.post("segment", {"images": images, "prompts": ["yellow bus", {"text": "cat"}]})
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["results"]
    expected = model.parts.segment(model.parts.embed(decode(picture)), [Prompt("yellow bus"), Prompt("cat")])
    found = entry["detections"]
    assert [item["class_id"] for item in found] == expected.class_ids.tolist()
    assert {item["name"] for item in found} == {"yellow bus", "cat"}
    np.testing.assert_allclose([item["score"] for item in found], expected.scores, rtol=1e-5)
    np.testing.assert_allclose([item["bbox_xyxy"] for item in found], expected.xyxy, rtol=1e-5)
    assert expected.masks is not None
    for index, item in enumerate(found):
        assert item["segmentation"]["size"] == [32, 48]
        mask = paint(unpack_counts(item["segmentation"]["counts"].encode()), (32, 48))
        assert (mask == expected.masks[index]).all()


def test_a_form_says_the_same(served: Any, picture: bytes, images: Any) -> None:
    prompts = ["cat", {"text": "bus", "boxes_xyxy": [BOX], "negative_boxes_xyxy": [[0, 0, 4, 4]]}]
    as_json = served.post("segment", {"images": images, "prompts": prompts}).json()
    as_form = served.post_files("segment", [picture], prompts=["cat", json.dumps(prompts[1])]).json()
    assert as_form["results"][0]["detections"] == as_json["results"][0]["detections"]
    assert as_json["results"][0]["detections"]


def test_examples_need_no_text(served: Any, images: Any) -> None:
    answer = served.post("segment", {"images": images, "prompts": [{"boxes_xyxy": [BOX]}]}).json()
    assert {item["name"] for item in answer["results"][0]["detections"]} == {"visual"}


def test_a_picture_is_remembered(served: Any, model: SegmentModel, images: Any) -> None:
    for prompt in ("cat", "dog", "bus"):
        assert served.post("segment", {"images": images, "prompts": [prompt]}).status_code == 200
    assert model.stats.pictures == 1
    assert model.parts.cache_stats.hits == 2


def test_each_picture_is_answered_by_itself(served: Any, encode: Encode) -> None:
    pictures = [encode((1, 2, 3)), b"nothing", encode((9, 9, 9))]
    answer = served.post_files("segment", pictures, prompts="cat")
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert ["detections" in result for result in results] == [True, False, True]
    assert results[1]["error"]["reason"] == "not_an_image"


def test_the_picture_comes_back_with_its_masks(served: Any, picture: bytes) -> None:
    answer = served.post_files("segment", [picture], prompts="cat", response="annotated")
    assert answer.headers["content-type"] == "image/png"
    assert decode(answer.content).shape == (32, 48, 3)
    assert (decode(answer.content) != decode(picture)).any()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "finds what it is prompted for"),
    ({"prompts": []}, "finds what it is prompted for"),
    ({"prompts": [" "]}, "empty"),
    ({"prompts": [""]}, "prompts.0"),
    ({"prompts": [7]}, "prompts.0"),
    ({"prompts": [{}]}, "needs a text"),
    ({"prompts": ["cat"] * 33}, "at most 32"),
    ({"prompts": ["a" * 1001]}, "1000 characters"),
    ({"prompts": ["cat " * 31]}, "31 tokens"),
    ({"prompts": [{"text": "cat", "boxes_xyxy": [BOX] * 9}]}, "takes up to 8"),
    ({"prompts": [{"text": "cat", "boxes_xyxy": [BOX] * 65}]}, "at most 64"),
    ({"prompts": [{"boxes_xyxy": [[5, 5, 5, 9]]}]}, "area above 0"),
    ({"prompts": [{"boxes_xyxy": [[500, 500, 600, 900]]}]}, "outside of the picture of 48 x 32"),
    ({"prompts": [{"text": "cat", "points_xy": [[1, 1]]}]}, "points_xy"),
    ({"prompts": ["cat"], "classes": ["cat"]}, "are its prompts"),
    ({"prompts": ["cat"], "iou_threshold": 0.5}, "no NMS"),
]


def test_what_cannot_be_asked_is_refused(served: Any, images: Any) -> None:
    for options, message in REFUSED:
        assert message in told(served.post("segment", {"images": images, **options})), options


def test_boxes_are_of_one_picture(served: Any, images: Any) -> None:
    prompts = [{"text": "cat", "boxes_xyxy": [BOX]}]
    assert "several" in told(served.post("segment", {"images": images * 2, "prompts": prompts}))


def test_a_prompt_in_a_form_that_is_no_json_is_refused(served: Any, picture: bytes) -> None:
    for text in ('{"text": "cat"', "{" * 100, '{"a":' + "[" * 20_000):
        assert served.post_files("segment", [picture], prompts=text).status_code == 400


def test_the_other_tasks_say_where_to_go(served: Any, images: Any) -> None:
    assert "No served model does detect" in told(served.post("detect", {"images": images}))
    assert "does segment, not detect" in told(served.post("detect", {"images": images, "model": "sam"}))
