"""What may be asked: models, thresholds, classes; and that nothing asked for is dropped silently."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from vtk.bundle import Label
from vtk.errors import UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.server.settings import ServerSettings
from vtk.server.vision.choose import class_filter, prompts_of, recipe_for
from vtk.server.vision.options import DetectOptions, EmbedOptions, SegmentOptions

Encode = Callable[..., bytes]
Serve = Callable[..., Any]
MakeModel = Callable[..., Any]


@pytest.fixture
def images(encode: Encode) -> list[str]:
    """One picture in which the fake models see cat 0.50, dog 0.40 and hot air balloon 0.30."""
    return [base64.b64encode(encode((128, 102, 77))).decode()]


def found(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    [result] = answer.json()["results"]
    return [item["name"] for item in result.get("detections") or result.get("classes", [])]


def told(answer: Any, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    message: str = answer.json()["error"]["message"]
    return message


CAT, DOG, BALLOON = "cat", "dog", "hot air balloon"


@pytest.mark.parametrize("kind", ["detr", "yolo"])
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, [CAT, DOG, BALLOON]),
        ({"score_threshold": 0.35}, [CAT, DOG]),
        ({"score_threshold": 0}, [CAT, DOG, BALLOON]),
        ({"score_threshold": 1}, []),
        ({"max_detections": 1}, [CAT]),
        ({"classes": [DOG]}, [DOG]),
        ({"classes": [2, "cat"]}, [CAT, BALLOON]),
        ({"classes": ["1"], "max_detections": 1}, [DOG]),
    ],
)
def test_detection_follows_the_options(
    serve: Serve, make_model: MakeModel, images: list[str], kind: str, options: dict[str, Any], names: list[str]
) -> None:
    """YOLO reports the best class of an anchor only."""
    served = serve(make_model(kind, "toy"))
    if kind == "yolo":
        wanted = options.get("classes")
        names = [CAT] if CAT in names and (wanted is None or CAT in wanted) else []
    assert found(served.post("detect", {"images": images, **options})) == names
    form = {name: value if isinstance(value, list) else str(value) for name, value in options.items()}
    assert found(served.post_files("detect", [base64.b64decode(images[0])], **form)) == names


def test_the_iou_threshold_is_that_of_the_nms(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    """The fake YOLO finds the same box twice."""
    served = serve(make_model("yolo", "toy"))
    assert found(served.post("detect", {"images": images})) == [CAT]
    assert found(served.post("detect", {"images": images, "iou_threshold": 1.0})) == [CAT, CAT]


def test_an_option_that_would_do_nothing_is_refused(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("detr", "toy"))
    assert "no NMS" in told(served.post("detect", {"images": images, "iou_threshold": 0.5}))


def test_classification_follows_the_options(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("classify", "toy"))
    assert found(served.post("classify", {"images": images})) == [CAT, DOG]
    assert found(served.post("classify", {"images": images, "top_k": 1})) == [CAT]
    assert found(served.post("classify", {"images": images, "top_k": 9})) == [CAT, DOG, BALLOON]
    assert found(served.post("classify", {"images": images, "classes": [BALLOON, 1]})) == [DOG, BALLOON]


WRONG = [
    ("detect", {"score_threshold": 1.5}, "score_threshold"),
    ("detect", {"score_threshold": -0.1}, "score_threshold"),
    ("detect", {"score_threshold": "0.5"}, "score_threshold"),
    ("detect", {"iou_threshold": 2}, "iou_threshold"),
    ("detect", {"max_detections": 0}, "max_detections"),
    ("detect", {"max_detections": True}, "max_detections"),
    ("detect", {"max_detections": 1.5}, "max_detections"),
    ("detect", {"classes": []}, "classes"),
    ("detect", {"classes": "cat"}, "classes"),
    ("detect", {"classes": ["car"]}, "Did you mean cat?"),
    ("detect", {"classes": ["zzz"]}, "no class 'zzz'"),
    ("detect", {"classes": [3]}, "0 to 2"),
    ("detect", {"classes": [-1]}, "classes"),
    ("detect", {"classes": [10**400]}, "classes"),
    ("detect", {"classes": ["٣"]}, "no class"),
    ("detect", {"response": "svg"}, "annotated"),
    ("detect", {"priority": 1.5}, "priority"),
    ("detect", {"timeout_ms": 0}, "timeout_ms"),
    ("detect", {"timeout_ms": -5}, "timeout_ms"),
    ("detect", {"model": 7}, "model"),
    ("detect", {"top_k": 5}, "no option 'top_k'"),
    ("detect", {"treshold": 0.5}, "score_threshold"),
    ("embed", {"classes": ["cat"]}, "no option 'classes'"),
    ("embed", {"response": "annotated"}, "no option 'response'"),
    ("embed", {"encoding_format": "hex"}, "base64"),
    ("classify", {"score_threshold": 0.5}, "no option 'score_threshold'"),
    ("detect", {"images": []}, "no picture"),
    ("detect", {"images": "x"}, "images"),
    ("detect", {"images": [5]}, "images"),
    ("detect", {"images": [{"url": "data:,", "detail": "low"}]}, "images"),
    ("detect", {"images": [{}]}, "images"),
]


@pytest.mark.parametrize(("task", "options", "text"), WRONG)
def test_a_wrong_option_is_named(
    serve: Serve, make_model: MakeModel, images: list[str], task: str, options: dict[str, Any], text: str
) -> None:
    served = serve(make_model("detr", "toy"), make_model("embed", "dino"), make_model("classify", "net"))
    message = told(served.post(task, {"images": images, **options}))
    assert text in message
    assert images[0][:40] not in message


HERE = "Options here: model, priority, timeout_ms"
UNKNOWN = [
    ("segment", {"points": [[1, 2]], "object": 1}, "There is no option 'object'. " + HERE),
    ("segment", {"points": [[1, 2]], "object": None}, "There is no option 'object'. " + HERE),
    ("segment", {"prompts": [{"text": "cat", "points": [[1, 2]]}]}, "'prompts.0.points'. Options here: text"),
    ("segment", {"prompts": ["cat", {"object": 1}]}, "'prompts.1.object'. Options here: text, boxes_xyxy"),
    ("detect", {"prompts": ["cat"]}, "There is no option 'prompts'. " + HERE),
    ("detect", {"images": [{"url": "data:,", "detail": "low"}]}, "'images.0.detail'. Options here: url."),
]


@pytest.mark.parametrize(("task", "options", "text"), UNKNOWN)
def test_an_unknown_option_is_named_with_those_there_are(
    serve: Serve, make_model: MakeModel, images: list[str], task: str, options: dict[str, Any], text: str
) -> None:
    answer = serve(make_model("detr", "toy")).post(task, {"images": images, **options})
    assert text in told(answer)
    assert answer.json()["error"]["code"] == "unknown_field"


def test_an_unknown_field_of_a_form_is_named_with_those_there_are(
    serve: Serve, make_model: MakeModel, encode: Encode
) -> None:
    served = serve(make_model("detr", "toy"))
    answer = served.post_files("segment", [encode()], points="[[1, 2]]", object="1")
    assert "There is no option 'object'. " + HERE in told(answer)
    nested = served.post_files("segment", [encode()], prompts='{"text": "cat", "object": 1}')
    assert "'prompts.0.object'. Options here: text, boxes_xyxy" in told(nested)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"images": [5]}, "images.0: "),
        ({"images": [{}]}, "images.0.url: "),
        ({"prompts": [5]}, "prompts.0: "),
        ({"prompts": [{"text": 5}]}, "prompts.0.text: "),
        ({"prompts": [""]}, "prompts.0: "),
    ],
)
def test_the_place_of_a_mistake_is_one_in_the_body(
    serve: Serve, make_model: MakeModel, images: list[str], options: dict[str, Any], place: str
) -> None:
    assert told(serve(make_model("detr", "toy")).post("segment", {"images": images, **options})).startswith(place)


@pytest.mark.parametrize("task", ["detect", "embed", "classify"])
def test_the_only_model_of_a_task_needs_no_name(
    serve: Serve, make_model: MakeModel, images: list[str], task: str
) -> None:
    models = (make_model("detr", "toy"), make_model("embed", "dino"), make_model("classify", "net"))
    answer = serve(*models).post(task, {"images": images})
    assert answer.json()["model"] == {"detect": "toy", "embed": "dino", "classify": "net"}[task]


def test_of_several_models_one_is_named(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("detr", "b"), make_model("yolo", "a"))
    assert "Several served models do detect: a, b." in told(served.post("detect", {"images": images}))
    assert served.post("detect", {"images": images, "model": "a"}).json()["model"] == "a"


def test_versions_are_of_one_model(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("detr", "toy", version="1"), make_model("detr", "toy", version="12"))
    asked = {None: "12", "toy": "12", "toy/1": "1", "toy/12": "12"}
    for name, version in asked.items():
        assert served.post("detect", {"images": images, "model": name}).json()["version"] == version
    assert "toy" in told(served.post("detect", {"images": images, "model": "toy/3"}), 404)


def test_a_model_of_another_task_says_what_it_does(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("detr", "toy"), make_model("embed", "dino"))
    message = told(served.post("detect", {"images": images, "model": "dino"}))
    assert message == "The model 'dino' does embed, not detect. POST to /v1/vision/embed instead."
    assert "toy (detect), dino (embed)" in told(served.post("classify", {"images": images}))
    assert "toy (detect), dino (embed)" in told(served.post("segment", {"images": images}))
    assert "does detect, not segment" in told(served.post("segment", {"images": images, "model": "toy"}))
    assert served.runtime.leases == 0


@pytest.mark.parametrize("name", ["other", "../toy", "/etc", "toy/../toy", ""])
def test_an_unknown_model_is_not_found(serve: Serve, make_model: MakeModel, images: list[str], name: str) -> None:
    served = serve(make_model("detr", "toy"), make_model("yolo", "toy2"))
    answer = served.post("detect", {"images": images, "model": name})
    assert answer.status_code == (404 if name else 400)


def test_a_model_that_is_loading_is_unavailable(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("detr", "toy"), states={"toy": "loading"})
    assert "loading" in told(served.post("detect", {"images": images}), 503)
    failed = serve(make_model("detr", "toy"), states={"toy": "failed"})
    assert "No served model does detect" in told(failed.post("detect", {"images": images}))


def test_prompts_are_refused_where_the_model_takes_none() -> None:
    post = PostRecipe("detr")
    with pytest.raises(UsageError, match="takes no prompts"):
        prompts_of(SegmentOptions(prompts=["cat"]), post, "toy", 1)
    assert prompts_of(SegmentOptions(), post, "toy", 1) == ()
    assert prompts_of(DetectOptions(), post, "toy", 1) == ()


def test_prompts_come_as_texts_or_examples(serve: Serve, make_model: MakeModel, images: list[str]) -> None:
    served = serve(make_model("detr", "toy"))
    good = ["a cat", {"text": "dog", "boxes_xyxy": [[0, 0, 5, 5]]}, {"boxes_xyxy": [[1, 2, 3, 4]]}]
    assert "No served model does segment" in told(served.post("segment", {"images": images, "prompts": good}))
    wrong = told(served.post("segment", {"images": images, "prompts": [{"boxes": [[0, 0, 5, 5]]}]}))
    assert "Options here: text, boxes_xyxy, negative_boxes_xyxy." in wrong


def test_what_is_not_asked_for_stays_the_models_own() -> None:
    post = PostRecipe("yolo", score_threshold=0.4, iou_threshold=0.6, max_detections=7)
    assert recipe_for(DetectOptions(), post, "toy") == post
    assert recipe_for(DetectOptions(score_threshold=0.0), post, "toy") == replace(post, score_threshold=0.0)
    assert recipe_for(EmbedOptions(), PostRecipe("embed"), "dino") == PostRecipe("embed")


def test_a_class_name_that_looks_like_a_number_is_a_name_first() -> None:
    labels = (Label(1, "3"), Label(2, "three"), Label(3, "three"), Label(4, "x"))
    assert class_filter(DetectOptions(classes=["3"]), labels) == {0}
    assert class_filter(DetectOptions(classes=[3]), labels) == {3}
    assert class_filter(DetectOptions(classes=["three"]), labels) == {1, 2}
    assert class_filter(DetectOptions(classes=["0"]), labels) == {0}


def test_default_settings_fetch_nothing(serve: Serve, make_model: MakeModel) -> None:
    served = serve(make_model("detr", "toy"), settings=ServerSettings())
    message = told(served.post("detect", {"images": [{"url": "http://127.0.0.1:1/a.png"}]}))
    assert "--allow-url-fetch" in message
