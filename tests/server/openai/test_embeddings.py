"""Embeddings of texts and pictures."""

import base64
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

import vtk


def picture(seed: int, size_wh: tuple[int, int] = (80, 60)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size_wh[1], size_wh[0], 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def embed(served: Any, model: str, inputs: Any, **options: Any) -> Any:
    return served.client.embeddings.create(model=model, input=inputs, **options)


def test_texts_have_vectors_of_length_one_in_their_order(served: Any) -> None:
    both = embed(served, "tiny-llama", ["hello", "world!"])  # the client asks for base64
    assert [item.index for item in both.data] == [0, 1]
    assert both.usage.prompt_tokens == both.usage.total_tokens == 11
    vectors = np.array([item.embedding for item in both.data])
    assert vectors.shape == (2, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for text, vector in zip(("hello", "world!"), vectors, strict=True):
        alone = embed(served, "tiny-llama", text, encoding_format="float").data[0].embedding
        np.testing.assert_allclose(alone, vector, atol=1e-6)
    ids = httpx.post(f"{served.url}/tokenize", json={"model": "tiny-llama", "prompt": "hello"}).json()["tokens"]
    for inputs in (ids, [ids]):
        np.testing.assert_allclose(embed(served, "tiny-llama", inputs).data[0].embedding, vectors[0], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["x", 3]}, "input"),
        ({"input": [999]}, "input"),
        ({"input": "x" * 3000}, "input"),
        ({"input": "x", "dimensions": 8}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "colour": 1}, "colour"),
        ({}, "input"),
    ],
)
def test_what_cannot_be_embedded_is_named(served: Any, body: dict[str, Any], param: str) -> None:
    response = httpx.post(f"{served.url}/v1/embeddings", json={"model": "tiny-llama"} | body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_pictures_are_embedded_by_a_bundle(real_served: Any, embed_bundle: Path, tmp_path: Path) -> None:
    pictures = [picture(1), picture(2, (40, 90))]
    paths = []
    for i, data in enumerate(pictures):
        paths.append(tmp_path / f"{i}.png")
        paths[-1].write_bytes(data)
    with vtk.load(embed_bundle) as model:
        expected = [model(path).pooled for path in paths]
    plain, url = (base64.b64encode(data).decode() for data in pictures)
    answer = embed(real_served, embed_bundle.name, [plain, f"data:image/png;base64,{url}"])
    for item, vector in zip(answer.data, expected, strict=True):
        np.testing.assert_allclose(item.embedding, vector, atol=1e-4)
    one = embed(real_served, embed_bundle.name, plain, encoding_format="float")
    np.testing.assert_allclose(one.data[0].embedding, expected[0], atol=1e-4)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ("hello", "image_unreadable"),
        (base64.b64encode(b"hello").decode(), "image_not_an_image"),
        ("http://127.0.0.1/a.png", "image_refused"),
        ([1, 2], "invalid_value"),
    ],
)
def test_what_is_no_picture_is_refused(real_served: Any, embed_bundle: Path, inputs: Any, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        embed(real_served, embed_bundle.name, inputs)
    assert refused.value.code == code
