"""The whole server with bundles as `vtk export` makes them gives what the Python API gives."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import vtk
from vtk.postprocess.results import Detections, Embeddings

PICTURES = sorted((Path(__file__).parents[2] / "data/golden/toy_images").iterdir())


def test_detections_are_those_of_the_python_api(client: TestClient, toy_bundle: Path) -> None:
    """JPEG, PNG, EXIF-rotated, gray and RGBA pictures in one request, batched in another way than the API does."""
    answer = client.post("/v1/vision/detect", files=[("images", path.read_bytes()) for path in PICTURES])
    assert answer.status_code == 200
    with vtk.load(toy_bundle) as model:
        expected = model(PICTURES)
        labels = model.labels
    found = 0
    for result, wanted in zip(answer.json()["results"], expected, strict=True):
        assert isinstance(wanted, Detections)
        assert (result["width"], result["height"]) == wanted.resolution_wh
        items = result["detections"]
        assert [item["category_id"] for item in items] == [labels[index].category_id for index in wanted.class_ids]
        assert [item["name"] for item in items] == [labels[index].name for index in wanted.class_ids]
        assert [item["score"] for item in items] == pytest.approx(wanted.scores.tolist(), abs=1e-4)
        boxes = np.array([item["bbox_xyxy"] for item in items]).reshape(-1, 4)
        assert boxes == pytest.approx(wanted.xyxy, abs=0.05)
        found += len(items)
    assert found > len(PICTURES)


def test_embeddings_are_those_of_the_python_api(client: TestClient, embed_bundle: Path) -> None:
    pictures = [path.read_bytes() for path in PICTURES[:6]]
    images = [base64.b64encode(picture).decode() for picture in pictures]
    answer = client.post("/v1/vision/embed", json={"images": images, "encoding_format": "base64"})
    assert answer.status_code == 200
    with vtk.load(embed_bundle) as model:
        expected = model(pictures)
    for result, wanted in zip(answer.json()["results"], expected, strict=True):
        assert isinstance(wanted, Embeddings)
        vector = np.frombuffer(base64.b64decode(result["embedding"]), "<f4")
        assert vector == pytest.approx(wanted.pooled, abs=1e-4)


def test_one_annotated_picture_comes_back_upright(client: TestClient) -> None:
    path = next(path for path in PICTURES if "exif6" in path.name)
    with Image.open(path) as stored:
        size = stored.size
    answer = client.post(
        "/v1/vision/detect", files={"image": path.read_bytes()}, data={"response": "annotated", "model": "toy-deim"}
    )
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == size[::-1]


def test_what_the_server_cannot_do_it_says(client: TestClient) -> None:
    picture = {"image": PICTURES[0].read_bytes()}
    asked = {
        "segment": "No served model does segment. Served for pictures: tiny-dino (embed), toy-deim (detect).",
        "classify": "No served model does classify.",
    }
    for task, message in asked.items():
        answer = client.post(f"/v1/vision/{task}", files=picture)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]
    assert client.post("/v1/vision/detect", files=picture, data={"model": "nothing"}).status_code == 404
