"""The reduced SAM3, exported, gives the official program's masks and boxes: in Python, in a folder job, and served."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from starlette.testclient import TestClient

import vtk
from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.postprocess.results import Detections
from vtk.postprocess.rle import paint, unpack_counts
from vtk.runtime import Runtime
from vtk.segmenting.predictor import open_segment_predictor
from vtk.segmenting.prompts import Prompt
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings
from vtk.serving.settings import RuntimeSettings

SIZE = 224
TEXT = "dog cat"  # whose tokens the golden data has
THRESHOLD = 0.25  # of random weights, whose scores are low
MIN_IOU = 0.999
CASES = ("text", "textbox")

Floats = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Found:
    """Results of one picture, by falling score: (N,), (N, 4), (N, H, W)."""

    scores: Floats
    xyxy: Floats
    masks: npt.NDArray[np.bool_]


@pytest.fixture(scope="module")
def expected(golden: Path) -> Arrays:
    with np.load(golden / "sam3_small_expected.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def picture(expected: Arrays) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(expected["pixel_uint8"][0].transpose(1, 2, 0))


@pytest.fixture(scope="module")
def picture_file(picture: npt.NDArray[np.uint8], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "golden.png"
    Image.fromarray(picture).save(path)
    return path


@pytest.fixture(scope="module")
def boxes(expected: Arrays) -> list[tuple[float, float, float, float]]:
    """The example and the counterexample in pixels."""
    x, y, w, h = (expected["input_boxes_cxcywh"][0].astype(np.float64) * SIZE).T
    assert expected["input_boxes_labels"].tolist() == [[1, 0]]
    return [tuple(row) for row in np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], axis=1).tolist()]


@pytest.fixture(scope="module")
def prompts(boxes: list[tuple[float, float, float, float]]) -> dict[str, Prompt]:
    return {"text": Prompt(TEXT), "textbox": Prompt(TEXT, (boxes[0],), (boxes[1],))}


def official(expected: Arrays, case: str) -> Found:
    """By the official post-processing in torch, above THRESHOLD."""
    part = {
        name: torch.from_numpy(expected[f"official_{case}_{name}"]).float()
        for name in ("pred_masks", "pred_boxes", "pred_logits", "presence_logits")
    }
    scores = (part["pred_logits"].reshape(-1).sigmoid() * part["presence_logits"].reshape(()).sigmoid()).double()
    masks = F.interpolate(part["pred_masks"], (SIZE, SIZE), mode="bilinear", align_corners=False)[0].sigmoid() > 0.5
    order = [int(i) for i in torch.argsort(scores, descending=True, stable=True) if scores[i] > THRESHOLD]
    return Found(scores[order].numpy(), part["pred_boxes"][0][order].double().numpy() * SIZE, masks[order].numpy())


def check(found: Found, wanted: Found) -> None:
    assert len(found.scores) == len(wanted.scores) > 0
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found.xyxy, wanted.xyxy, rtol=0, atol=1e-4 * SIZE)
    for mask, other in zip(found.masks, wanted.masks, strict=True):
        assert (mask & other).sum() >= MIN_IOU * (mask | other).sum()


def of_detections(result: Detections) -> Found:
    assert result.masks is not None
    return Found(result.scores.astype(np.float64), result.xyxy.astype(np.float64), result.masks.dense())


def of_rows(rows: list[dict[str, Any]]) -> Found:
    masks = [paint(unpack_counts(row["segmentation"]["counts"].encode()), (SIZE, SIZE)) for row in rows]
    scores = np.array([row["score"] for row in rows])
    return Found(scores, np.array([row["bbox_xyxy"] for row in rows]).reshape(-1, 4), np.stack(masks))


@pytest.fixture(scope="module")
def model(sam3_bundle: Path) -> Iterator[vtk.Model]:
    with vtk.load(sam3_bundle, backend="ort", threads=1) as opened:
        yield opened


@pytest.mark.parametrize("case", CASES)
def test_raw_outputs_are_the_official_ones(
    sam3_bundle: Path, expected: Arrays, picture: npt.NDArray[np.uint8], prompts: dict[str, Prompt], case: str
) -> None:
    with open_segment_predictor(read_bundle(sam3_bundle), backend="ort", threads=1) as predictor:
        raw = predictor.decode(predictor.embed(picture), prompts[case])
    limits = {"masks": ("pred_masks", 5e-4), "boxes_xyxy": ("pred_boxes", 1e-5), "logits": ("pred_logits", 5e-5)}
    for name, (stored, limit) in {**limits, "presence": ("presence_logits", 5e-5)}.items():
        wanted = expected[f"official_{case}_{stored}"].reshape(raw[name].shape)
        np.testing.assert_allclose(raw[name], wanted, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_the_python_api_finds_the_official_masks(
    model: vtk.Model, expected: Arrays, picture: npt.NDArray[np.uint8], prompts: dict[str, Prompt], case: str
) -> None:
    result = model.segment(picture, [prompts[case]], score_threshold=THRESHOLD)
    check(of_detections(result), official(expected, case))


@pytest.mark.parametrize("case", CASES)
def test_a_folder_job_finds_the_official_masks(
    sam3_bundle: Path,
    expected: Arrays,
    picture_file: Path,
    boxes: list[tuple[float, float, float, float]],
    case: str,
    tmp_path: Path,
) -> None:
    examples = [{"prompt": TEXT, "xyxy": box, "positive": place == 0} for place, box in enumerate(boxes)]
    (tmp_path / "boxes.json").write_text(json.dumps({"golden.png": examples}))
    options = ["--boxes", str(tmp_path / "boxes.json")] if case == "textbox" else []
    out = tmp_path / "out"
    command = ["run", str(sam3_bundle), str(picture_file.parent), "-o", str(out), "--prompt", TEXT, "--backend", "ort"]
    assert main([*command, "--score", str(THRESHOLD), *options]) == 0
    (row,) = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert {item["name"] for item in row["detections"]} == {TEXT}
    check(of_rows(row["detections"]), official(expected, case))


@pytest.fixture(scope="module")
def client(sam3_bundle: Path) -> Iterator[TestClient]:
    settings = RuntimeSettings(
        selected=(str(sam3_bundle),), backend="ort", threads=1, memory_bytes=1 << 30, embedding_cache_bytes=32 << 20
    )
    runtime = Runtime(settings)
    try:
        runtime.start()
        app = create_app(ServerContext(runtime, ServerSettings(), Metrics()))
        with TestClient(app, base_url="http://127.0.0.1:8000") as client:
            yield client
    finally:
        runtime.close()


@pytest.mark.parametrize("case", CASES)
def test_the_server_finds_the_official_masks(
    client: TestClient, expected: Arrays, picture_file: Path, boxes: Any, case: str
) -> None:
    given = {"boxes_xyxy": [boxes[0]], "negative_boxes_xyxy": [boxes[1]]} if case == "textbox" else {}
    answer = client.post(
        "/v1/vision/segment",
        files=[("images", ("golden.png", picture_file.read_bytes()))],
        data={"prompts": json.dumps({"text": TEXT, **given}), "score_threshold": str(THRESHOLD)},
    )
    assert answer.status_code == 200, answer.text
    check(of_rows(answer.json()["results"][0]["detections"]), official(expected, case))


def test_the_server_says_what_it_serves(client: TestClient) -> None:
    """The cache is part of the model's memory, and the model is listed with its task."""
    (card,) = client.get("/v1/models").json()["data"]
    assert (card["task"], card["kind"]) == ("segment", "vision")
    assert card["prompts"] == {"max_prompts": 32, "max_tokens": 30, "max_boxes": 8, "score_threshold": 0.5}
    metadata = client.get(f"/v2/models/{card['id']}").json()
    assert metadata["inputs"] == metadata["outputs"] == []
    refused = client.post(
        f"/v2/models/{card['id']}/infer",
        json={"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 1], "data": [0]}]},
    )
    assert refused.status_code == 400
    assert "/v1/vision/segment" in refused.text
    metrics = client.get("/metrics").text
    assert "vtk:embedding_cache_hits_total" in metrics
