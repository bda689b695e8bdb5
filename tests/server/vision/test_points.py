"""`/v1/vision/segment` with points on an object: JSON and form, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vtk.bundle import read_bundle
from vtk.preprocess.decode import decode
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.predictor import open_segment_predictor
from vtk.segmenting.prompts import Prompt
from vtk.serving.arbiter import Arbiter
from vtk.serving.segment_model import SegmentModel

POINTS = {"points": [[20, 10], [3.5, 30]], "point_labels": [1, 0], "box_xyxy": [2.0, 3.0, 40.0, 31.0]}


@pytest.fixture
def model(pointed_bundle: Path) -> SegmentModel:
    """Closed by the server."""
    parts = open_segment_predictor(read_bundle(pointed_bundle), backend="ort", threads=1)
    return SegmentModel(parts, Arbiter(), name="sam")


@pytest.fixture
def served(serve: Callable[..., Any], model: SegmentModel) -> Any:
    return serve(model)


@pytest.fixture
def picture(encode: Callable[..., bytes]) -> bytes:
    return encode((200, 90, 10), (48, 32))


@pytest.fixture
def images(picture: bytes) -> list[str]:
    return [base64.b64encode(picture).decode()]


def told(response: Any) -> str:
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


def test_the_object_is_the_last_class(served: Any, model: SegmentModel, picture: bytes, images: Any) -> None:
    answer = served.post("segment", {"images": images, "prompts": ["cat"], **POINTS})
    assert answer.status_code == 200, answer.text
    found = answer.json()["results"][0]["detections"]
    clicks = Clicks(((20, 10), (3.5, 30)), (1, 0), (2, 3, 40, 31))
    expected = model.parts.segment(model.parts.embed(decode(picture)), [Prompt("cat"), Prompt(objects=(clicks,))])
    assert [item["class_id"] for item in found] == expected.class_ids.tolist()
    assert [item["name"] for item in found if item["class_id"] == 1] == ["object"]
    np.testing.assert_allclose([item["bbox_xyxy"] for item in found], expected.xyxy, rtol=1e-5)
    assert expected.masks is not None
    assert [item["segmentation"] for item in found] == [expected.masks.to_coco(i) for i in range(len(expected))]


def test_a_form_says_the_same(served: Any, picture: bytes, images: Any) -> None:
    as_json = served.post("segment", {"images": images, **POINTS}).json()
    as_form = served.post_files("segment", [picture], **{name: json.dumps(value) for name, value in POINTS.items()})
    assert as_form.json()["results"][0]["detections"] == as_json["results"][0]["detections"]
    assert len(as_json["results"][0]["detections"]) == 1


def test_a_further_click_needs_no_picture_encoded(served: Any, model: SegmentModel, images: Any) -> None:
    for x in (1, 2, 3):
        assert served.post("segment", {"images": images, "points": [[x, 5]]}).status_code == 200
    assert model.stats.pictures == 1
    assert model.parts.cache_stats.hits == 2


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"points": []}, "finds what it is prompted for"),
    ({"points": [[1, 2]], "point_labels": [1, 1]}, "1 points and 2 labels"),
    ({"points": [[1, 2]], "point_labels": [0]}, "needs a point on it"),
    ({"points": [[1, 2]], "point_labels": [2]}, "point_labels.0"),
    ({"points": [[1, 2]], "point_labels": [True]}, "point_labels.0"),
    ({"points": [[True, 2]]}, "points.0.0"),
    ({"box_xyxy": [1, 2, "30", 40]}, "box_xyxy.2"),
    ({"point_labels": [1]}, "0 points and 1 labels"),
    ({"points": [[1]]}, "points.0"),
    ({"points": [[1, "a"]]}, "points.0.1"),
    ({"points": [[1, 2]] * 9}, "takes up to 8"),
    ({"points": [[1, 2]] * 65}, "at most 64"),
    ({"points": [[500, 2]]}, "outside of the picture of 48 x 32"),
    ({"box_xyxy": [5, 5, 5, 9]}, "area above 0"),
    ({"points": [[1, 2]], "classes": ["cat"]}, "are its prompts"),
]


def test_what_is_no_point_is_refused(served: Any, images: Any) -> None:
    for options, message in REFUSED:
        assert message in told(served.post("segment", {"images": images, **options})), options


def test_a_form_refuses_what_json_refuses(served: Any, picture: bytes) -> None:
    for options, message in REFUSED:
        fields = {name: value[0] if name == "classes" else json.dumps(value) for name, value in options.items()}
        assert message in told(served.post_files("segment", [picture], **fields)), options


def test_points_are_of_one_picture(served: Any, images: Any) -> None:
    assert "several" in told(served.post("segment", {"images": images * 2, "points": [[1, 2]]}))


def test_a_form_field_that_is_no_list_is_refused(served: Any, picture: bytes) -> None:
    for text in ("[[1, 2]", "[" * 20_000, "1, 2"):
        assert served.post_files("segment", [picture], points=text).status_code == 400
    assert "points" in told(served.post_files("segment", [picture], points="7"))


def test_a_model_without_the_part_says_so(serve: Callable[..., Any], prompted_bundle: Path, images: Any) -> None:
    parts = open_segment_predictor(read_bundle(prompted_bundle), backend="ort", threads=1)
    without = serve(SegmentModel(parts, Arbiter(), name="sam"))
    assert "takes no points" in told(without.post("segment", {"images": images, "points": [[1, 2]]}))
