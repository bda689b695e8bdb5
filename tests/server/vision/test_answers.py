"""What the vision routes answer: values, one picture at a time, and the status of the whole."""

from __future__ import annotations

import base64
import io
import random
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops

from vtk.errors import BackendError
from vtk.predictor import Predictor
from vtk.preprocess.decode import decode
from vtk.sinks.drawing import draw_detections

Encode = Callable[..., bytes]
Serve = Callable[..., Any]
MakeModel = Callable[..., Any]


def text_of(picture: bytes) -> str:
    return base64.b64encode(picture).decode("ascii")


def data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{text_of(picture)}"


def noise(seed: int, size_wh: tuple[int, int] = (31, 17), format: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format)
    return stream.getvalue()


def test_a_picture_is_detected_in_its_own_pixels(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    """The fake engine's scores are the picture's mean colors, its box is the middle half by quarter."""
    answer = serve(make_model("detr", "toy", version="3")).post("detect", {"images": [text_of(encode((128, 64, 32)))]})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["model"], body["version"], body["task"]) == ("toy", "3", "detect")
    assert body["seconds"] >= 0
    [picture] = body["results"]
    assert (picture["index"], picture["width"], picture["height"]) == (0, 24, 16)
    assert picture["seconds"].keys() == {"read", "decode", "preprocess", "queue", "infer", "postprocess"}
    cat, dog = picture["detections"]
    assert (cat["class_id"], cat["category_id"], cat["name"]) == (0, 1, "cat")
    assert (dog["class_id"], dog["category_id"], dog["name"]) == (1, 7, "dog")
    assert cat["score"] == pytest.approx((128 / 255 + 0.001) / 1.002, rel=1e-5)
    assert dog["score"] == pytest.approx((64 / 255 + 0.001) / 1.002, rel=1e-5)
    assert cat["bbox_xyxy"] == dog["bbox_xyxy"] == [6.0, 6.0, 18.0, 10.0]


def test_sizes_and_boxes_are_those_of_the_upright_picture(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = encode((200, 0, 0), (24, 16), "JPEG", exif=exif)
    [result] = serve(make_model("detr", "toy")).post_files("detect", [picture]).json()["results"]
    assert (result["width"], result["height"]) == (16, 24)
    assert result["detections"][0]["bbox_xyxy"] == [4.0, 9.0, 12.0, 15.0]


@pytest.mark.parametrize("kind", ["detr", "yolo", "embed", "classify"])
def test_every_way_to_send_pictures_gives_the_predictors_answers(
    serve: Serve, make_model: MakeModel, kind: Any
) -> None:
    """In batches of whatever size, each row is the result of its own picture."""
    model = make_model(kind, "toy")
    predictor: Predictor = model.predictor
    task = model.bundle.manifest.task
    pictures = [noise(random.randrange(1 << 30), (random.randint(1, 60), random.randint(1, 60))) for _ in range(11)]
    expected = predictor([decode(picture) for picture in pictures])
    served = serve(model)
    texts = [
        {"url": data_url(p)} if i % 3 == 0 else data_url(p) if i % 3 == 1 else text_of(p)
        for i, p in enumerate(pictures)
    ]
    for answer in (served.post(task, {"images": texts}), served.post_files(task, pictures)):
        assert answer.status_code == 200
        results = answer.json()["results"]
        assert [result["index"] for result in results] == list(range(11))
        for result, wanted in zip(results, expected, strict=True):
            assert (result["width"], result["height"]) == wanted.resolution_wh
            if task == "embed":
                assert np.array_equal(np.array(result["embedding"], np.float32), wanted.pooled)
                assert result["dim"] == len(wanted.pooled)
                continue
            found = result["detections" if task == "detect" else "classes"]
            assert [item["class_id"] for item in found] == wanted.class_ids.tolist()
            assert [np.float32(item["score"]) for item in found] == wanted.scores.tolist()
            if task == "detect":
                boxes = np.array([item["bbox_xyxy"] for item in found], np.float32).reshape(-1, 4)
                assert np.array_equal(boxes, wanted.xyxy)


def test_an_embedding_as_base64_is_the_same_floats(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    served = serve(make_model("embed", "dino"))
    images = [text_of(encode((10, 100, 200)))]
    [plain] = served.post("embed", {"images": images}).json()["results"]
    [packed] = served.post("embed", {"images": images, "encoding_format": "base64"}).json()["results"]
    values = np.frombuffer(base64.b64decode(packed["embedding"]), "<f4")
    assert np.array_equal(values, np.array(plain["embedding"], np.float32))
    assert values == pytest.approx(np.array([10, 100, 200]) / 255, rel=1e-6)


BAD = {
    "empty": "",
    "not_an_image": text_of(b"hello, this is text"),
    "unsupported": text_of(b"%PDF-1.7 and so on"),
    "truncated": text_of(noise(1)[:-200]),
    "unreadable": "*** no base64 ***",
    "refused": "https://example.com/a.png",
    "too_large": text_of(noise(2, (65, 64))),
}


def test_every_picture_is_answered_by_itself(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    good = text_of(encode())
    images = [good, *(item for text in BAD.values() for item in (text, good))]
    answer = serve(make_model("detr", "toy"), max_pixels=64 * 64).post("detect", {"images": images})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["index"] for result in results] == list(range(len(images)))
    first = results[0]["detections"]
    assert len(first) == 2
    assert all(result["detections"] == first for result in results[::2])
    for index, (reason, result) in enumerate(zip(BAD, results[1::2], strict=True)):
        assert "detections" not in result
        error = result["error"]
        assert (error["reason"], error["code"]) == (reason, f"image_{reason}")
        assert error["type"] == "invalid_request_error"
        assert error["param"] == f"images.{2 * index + 1}"
        assert error["message"]
    assert "--allow-url-fetch" in results[2 * list(BAD).index("refused") + 1]["error"]["message"]


@pytest.mark.parametrize("reason", BAD)
def test_the_status_is_400_when_no_picture_is_answered(serve: Serve, make_model: MakeModel, reason: str) -> None:
    served = serve(make_model("detr", "toy"), max_pixels=64 * 64)
    answer = served.post("detect", {"images": [BAD[reason], BAD["not_an_image"]]})
    assert answer.status_code == 400
    body = answer.json()
    assert body["error"]["code"] == f"image_{reason}"
    assert [result["error"]["reason"] for result in body["results"]] == [reason, "not_an_image"]


def test_the_pixel_limit_holds_for_the_header_alone(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    """A file of a few bytes whose header claims 60,000 x 60,000 pixels is refused without making room for them."""
    png = bytearray(encode())
    png[16:24] = (60_000).to_bytes(4, "big") * 2
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    answer = serve(make_model("detr", "toy")).post_files("detect", [bytes(png)])
    assert answer.status_code == 400
    assert answer.json()["results"][0]["error"]["reason"] == "too_large"


def test_a_full_queue_gives_429_and_a_time_to_come_back(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    answer = serve(make_model("detr", "toy", max_queued=0)).post("detect", {"images": [text_of(encode())]})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert "reason" not in answer.json()["results"][0]["error"]


def test_a_full_queue_refuses_some_pictures_of_a_request(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    """The others are answered as ever: 200, with the refusal in the place of each picture that found no room."""

    def hold_until_one_is_refused(images: object) -> None:
        end = time.monotonic() + 30
        while not model.stats.errors and time.monotonic() < end:
            time.sleep(0.001)

    model = make_model("detr", "toy", hook=hold_until_one_is_refused, max_queued=2)
    answer = serve(model).post("detect", {"images": [text_of(encode())] * 12})
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["index"] for result in results] == list(range(12))
    given = [result["detections"] for result in results if "error" not in result]
    errors = {result["index"]: result["error"] for result in results if "error" in result}
    assert given
    assert all(detections == given[0] and len(detections) == 2 for detections in given)
    assert errors
    for index, error in errors.items():
        assert (error["code"], error["param"]) == ("rate_limit_exceeded", f"images.{index}")
        assert "the limit is 2" in error["message"]


def test_the_most_hopeful_failure_gives_the_status(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    served = serve(make_model("detr", "toy", max_queued=0), max_pixels=4)
    answer = served.post("detect", {"images": [BAD["unreadable"], text_of(encode())]})
    assert answer.status_code == 429
    assert [result["error"]["code"] for result in answer.json()["results"]] == [
        "image_unreadable",
        "rate_limit_exceeded",
    ]


def test_a_failing_engine_is_the_servers_fault(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    def fail(images: object) -> None:
        raise BackendError("The device is gone.")

    answer = serve(make_model("detr", "toy", hook=fail)).post("detect", {"images": [text_of(encode())]})
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"


def drawn(picture: bytes, detections: list[dict[str, Any]]) -> Image.Image:
    image = Image.fromarray(decode(picture))
    draw_detections(image, detections)
    return image


def test_one_annotated_picture_is_the_answer_itself(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    served = serve(make_model("detr", "toy"))
    picture = encode((128, 64, 32), (200, 120))
    detections = served.post_files("detect", [picture]).json()["results"][0]["detections"]
    answer = served.post_files("detect", [picture], response="annotated")
    assert answer.headers["content-type"] == "image/png"
    result = Image.open(io.BytesIO(answer.content))
    assert ImageChops.difference(result, drawn(picture, detections)).getbbox() is None
    assert ImageChops.difference(result, Image.fromarray(decode(picture))).getbbox() is not None


def test_an_annotated_jpeg_stays_one_and_is_copied_when_nothing_was_found(
    serve: Serve, make_model: MakeModel, encode: Encode
) -> None:
    served = serve(make_model("detr", "toy"))
    picture = encode((128, 64, 32), (200, 120), "JPEG")
    answer = served.post_files("detect", [picture], response="annotated")
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (200, 120)
    assert answer.content != picture
    nothing = served.post_files("detect", [picture], response="annotated", score_threshold="1")
    assert nothing.content == picture


def test_several_annotated_pictures_come_as_base64_with_their_boxes(
    serve: Serve, make_model: MakeModel, encode: Encode
) -> None:
    served = serve(make_model("detr", "toy"))
    pictures = [encode((128, 64, 32), (90, 60)), b"bad", encode((10, 200, 32), (60, 90), "WEBP")]
    answer = served.post("detect", {"images": list(map(text_of, pictures)), "response": "annotated"})
    assert answer.status_code == 200
    first, bad, third = answer.json()["results"]
    assert bad["error"]["reason"] == "not_an_image"
    for picture, result in ((pictures[0], first), (pictures[2], third)):
        assert result["annotated"]["media_type"] == "image/png"
        image = Image.open(io.BytesIO(base64.b64decode(result["annotated"]["base64"])))
        assert ImageChops.difference(image, drawn(picture, result["detections"])).getbbox() is None


def test_one_bad_picture_asked_for_annotated_is_an_error_in_json(serve: Serve, make_model: MakeModel) -> None:
    answer = serve(make_model("detr", "toy")).post_files("detect", [b"bad"], response="annotated")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "image_not_an_image"


def test_annotated_pictures_together_are_bounded(serve: Serve, make_model: MakeModel, encode: Encode) -> None:
    """Formats that pack better than PNG could otherwise make the server hold many times what was sent."""
    picture = noise(3, (100, 100), "WEBP")
    served = serve(make_model("detr", "toy"), max_body_bytes=40_000)
    answer = served.post_files("detect", [picture, picture, picture], response="annotated")
    reasons = [result.get("error", {}).get("reason") for result in answer.json()["results"]]
    assert answer.status_code == 200
    assert sorted(map(str, reasons)) == ["None", "too_large", "too_large"]
