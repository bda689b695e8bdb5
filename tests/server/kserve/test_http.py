"""The protocol over HTTP as `curl` speaks it: plain JSON, hostile bodies, clients that leave."""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from http.client import HTTPConnection
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from vtk.server.app import create_app
from vtk.server.json_values import CONTAINER_VALUES
from vtk.server.kserve.http_codec import MAX_VALUES
from vtk.server.settings import ServerSettings

INFER = "/v2/models/mean/infer"
ROW = {"name": "images", "shape": [1, 3, 4, 6], "datatype": "FP32"}
ONES: dict[str, Any] = {**ROW, "data": [1.0] * 72}


def test_the_tour_of_curl(mean_client: TestClient) -> None:
    assert mean_client.get("/v2").json()["name"] == "vtk"
    assert mean_client.get("/v2/health/live").json() == {"live": True}
    assert mean_client.get("/v2/health/ready").json() == {"ready": True}
    assert mean_client.get("/v2/models/mean/ready").status_code == 200
    assert mean_client.get("/v2/models/mean/versions/2/ready").status_code == 200
    assert mean_client.get("/v2/models/mean").json()["platform"] == "fake"
    assert mean_client.get("/v2/models/mean/versions/1").json()["versions"] == ["1"]
    index = mean_client.post("/v2/repository/index").json()
    assert [(item["name"], item["version"], item["state"]) for item in index] == [
        ("mean", "1", "READY"),
        ("mean", "2", "READY"),
    ]


@pytest.mark.parametrize("path", ["/v2/models/{}", "/v2/models/{}/config", "/v2/models/{}/ready"])
@pytest.mark.parametrize("name", ["other", "mean/versions/7", "..%2f..%2fetc%2fpasswd", "mean%00", "%ed%a0%80"])
def test_a_model_that_is_not_there_is_404_in_the_protocols_shape(mean_client: TestClient, path: str, name: str) -> None:
    response = mean_client.get(path.format(name))
    assert response.status_code == 404
    assert list(response.json()) == ["error"]
    assert isinstance(response.json()["error"], str)


def test_json_in_json_out(mean_client: TestClient) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 3, 4, 6)).astype(np.float32)
    tensor = {"name": "images", "shape": [3, 3, 4, 6], "datatype": "FP32", "data": rows.tolist()}
    body = {"id": "a", "inputs": [tensor], "outputs": [{"name": "logits"}]}
    response = mean_client.post("/v2/models/mean/versions/2/infer", json=body)
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    logits = answer.pop("outputs")
    assert answer == {"model_name": "mean", "model_version": "2", "id": "a"}
    assert {key: logits[0][key] for key in ("name", "datatype", "shape")} == {
        "name": "logits",
        "datatype": "FP32",
        "shape": [3, 3],
    }
    np.testing.assert_allclose(np.reshape(logits[0]["data"], (3, 3)), rows.mean(axis=(2, 3)), rtol=1e-6)


def test_pictures_in_base64(mean_client: TestClient) -> None:
    stream = BytesIO()
    Image.new("RGB", (12, 8), (255, 255, 255)).save(stream, "PNG")
    picture = base64.b64encode(stream.getvalue()).decode()
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}
    answer = mean_client.post(INFER, json={"inputs": [tensor]}).json()
    assert len(set(answer["outputs"][0]["data"])) == 1


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (INFER, {"inputs": [ONES], "object": 1}, "object. Known here: id, inputs, outputs, parameters."),
        (INFER, {"inputs": [{**ONES, "dtype": "FP32"}]}, "dtype. Known here: data, datatype, name, parameters, shape."),
        (INFER, {"inputs": [ONES], "outputs": [{"name": "logits", "k": 1}]}, "k. Known here: name, parameters."),
        ("/v2/repository/index", {"unready": True}, "unready. Known here: ready."),
    ],
)
def test_an_unknown_field_is_named_with_those_there_are(
    mean_client: TestClient, path: str, body: dict[str, Any], told: str
) -> None:
    response = mean_client.post(path, json=body)
    assert response.status_code == 400
    assert told in response.json()["error"]


def test_one_output_in_binary_and_one_in_json(mean_client: TestClient) -> None:
    outputs = [{"name": "rows"}, {"name": "logits", "parameters": {"binary_data": True}}]
    response = mean_client.post(INFER, json={"inputs": [ONES], "outputs": outputs})
    split = int(response.headers["inference-header-content-length"])
    rows, logits = json.loads(response.content[:split])["outputs"]
    assert rows["data"] == [0]
    assert logits["parameters"] == {"binary_data_size": 12}
    np.testing.assert_allclose(np.frombuffer(response.content[split:], "<f4"), 1)


def test_binary_for_all_but_one(mean_client: TestClient) -> None:
    outputs = [{"name": "logits"}, {"name": "rows", "parameters": {"binary_data": False}}]
    body = {"inputs": [ONES], "outputs": outputs, "parameters": {"binary_data_output": True}}
    response = mean_client.post(INFER, json=body)
    logits, rows = json.loads(response.content[: int(response.headers["inference-header-content-length"])])["outputs"]
    assert rows["data"] == [0]
    assert "data" not in logits


def test_what_json_cannot_say_is_refused_and_comes_in_binary(mean_client: TestClient) -> None:
    values = np.full((1, 3, 4, 6), np.nan, np.float32)
    text = json.dumps({"inputs": [{**ROW, "parameters": {"binary_data_size": values.nbytes}}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    response = mean_client.post(INFER, content=text + values.tobytes(), headers=headers)
    assert response.status_code == 400
    assert "binary_data" in response.json()["error"]


def test_a_row_with_nan_leaves_its_neighbors_alone(mean_client: TestClient) -> None:
    values = np.ones((2, 3, 4, 6), np.float32)
    values[0] = np.nan
    inputs = [{**ROW, "shape": [2, 3, 4, 6], "parameters": {"binary_data_size": values.nbytes}}]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    response = mean_client.post(INFER, content=text + values.tobytes(), headers=headers)
    split = int(response.headers["inference-header-content-length"])
    np.testing.assert_array_equal(np.frombuffer(response.content[split : split + 24], "<f4")[3:], 1)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"inputs": [NaN]}',
        b'{"id": "\\ud800", "inputs": [{"name": "\\ud800", "shape": [], "datatype": "\\ud800", "data": []}]}',
        b'{"\\ud800": 1}',
        json.dumps({"inputs": [{**ONES, "shape": [-1, 3, 4, 6]}]}).encode(),
        json.dumps({"inputs": [{**ONES, "shape": [1 << 62, 1 << 62, 4, 6]}]}).encode(),
        json.dumps({"inputs": [{**ONES, "shape": [1 << 29, 3, 4, 6]}]}).encode(),
        json.dumps({"inputs": [{**ROW, "parameters": {"binary_data_size": 1 << 31}}]}).encode(),
        json.dumps({"inputs": [{**ONES, "data": [[1.0]] * 72}]}).encode(),
        json.dumps({"inputs": [{**ONES, "data": ["1.0"] * 72}]}).encode(),
        json.dumps({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": ["!"]}]}).encode(),
        json.dumps({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [""]}]}).encode(),
        json.dumps({"inputs": [{"name": "image", "shape": [1, 1], "datatype": "BYTES", "data": [["aGk="]]}]}).encode(),
        json.dumps({"inputs": [ONES], "outputs": [{"name": "logits"}] * 2}).encode(),
        b'{"inputs": [' + b"[]," * (MAX_VALUES // CONTAINER_VALUES) + b"0]}",
    ],
)
def test_a_hostile_body_is_400_and_the_server_goes_on(mean_client: TestClient, body: bytes) -> None:
    response = mean_client.post(INFER, content=body)
    assert response.status_code == 400
    assert list(response.json()) == ["error"]
    assert mean_client.post(INFER, json={"inputs": [ONES]}).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x" * 1000])
def test_a_compressed_body_is_refused_by_name(mean_client: TestClient, encoding: str) -> None:
    """Otherwise 64 KiB could be 64 MiB."""
    response = mean_client.post(INFER, content=gzip.compress(b"{}"), headers={"Content-Encoding": encoding})
    assert response.status_code == 415
    assert encoding[:40] in response.json()["error"]


def test_an_element_of_2_gb_is_a_claim_only(mean_client: TestClient) -> None:
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 6}}
    text = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text))}
    response = mean_client.post(INFER, content=text + b"\xff\xff\xff\x7fhi", headers=headers)
    assert response.status_code == 400
    assert "announces 2,147,483,647 bytes" in response.json()["error"]


def test_a_picture_beyond_the_pixel_limit_is_refused(mean_context: Any) -> None:
    settings = replace(mean_context.settings, limits=replace(mean_context.settings.limits, max_pixels=90))
    stream = BytesIO()
    Image.new("RGB", (10, 10)).save(stream, "PNG")
    picture = base64.b64encode(stream.getvalue()).decode()
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}
    with TestClient(create_app(replace(mean_context, settings=settings)), base_url="http://127.0.0.1") as client:
        response = client.post(INFER, json={"inputs": [tensor]})
    assert response.status_code == 400
    assert "the limit is 90" in response.json()["error"]


@pytest.mark.parametrize("body", ["5", "{", '{"ready": 1}', '{"rdy": true}', '{"parameters": []}'])
@pytest.mark.parametrize("path", ["index", "models/mean/load", "models/mean/unload"])
def test_malformed_control_requests_change_nothing(mean_client: TestClient, path: str, body: str) -> None:
    assert mean_client.post(f"/v2/repository/{path}", content=body).status_code == 400
    assert mean_client.get("/v2/models/mean/ready").status_code == 200


@pytest.mark.parametrize("name", ["..%2fmean", "%2e%2e", "/etc/passwd", "mean%2f1", "a" * 300, "mean%00"])
def test_a_name_is_never_a_path(mean_client: TestClient, name: str) -> None:
    assert mean_client.post(f"/v2/repository/models/{name}/load").status_code == 404
    assert mean_client.post(f"/v2/repository/models/{name}/unload").status_code == 404


def test_model_control_can_be_off(mean_context: Any) -> None:
    settings = ServerSettings(allow_model_control=False)
    with TestClient(create_app(replace(mean_context, settings=settings)), base_url="http://127.0.0.1") as client:
        for verb in ("load", "unload"):
            response = client.post(f"/v2/repository/models/mean/{verb}")
            assert response.status_code == 403
            assert "over the network" in response.json()["error"]
        assert client.get("/v2/models/mean/ready").status_code == 200


def test_a_half_copied_model_is_not_served(make_mean: Any) -> None:
    """Case V63: a folder without its manifest, which is written last, is no model yet."""
    mean = make_mean()
    with TestClient(create_app(mean.context), base_url="http://127.0.0.1") as client:
        assert client.post("/v2/repository/models/half/load").status_code == 404
        (mean.folder / "half/manifest.json").write_text("{}")
        assert client.post("/v2/repository/models/half/load").status_code == 200
        assert client.get("/v2/models/half/ready").status_code == 200


def test_requests_during_reloads_are_all_answered(mean_client: TestClient, mean_model: Any) -> None:
    """Case V63: the old version serves until the new one does."""
    statuses: list[int] = []
    leave = threading.Event()

    def ask() -> None:
        while not leave.is_set():
            statuses.append(mean_client.post(INFER, json={"inputs": [ONES]}).status_code)

    thread = threading.Thread(target=ask)
    thread.start()
    before = mean_model.opened
    for _ in range(5):
        assert mean_client.post("/v2/repository/models/mean/load").status_code == 200
    leave.set()
    thread.join()
    assert mean_model.opened > before
    assert set(statuses) == {200}


def test_a_client_that_leaves_frees_its_place_in_the_queue(
    mean_context: Any, mean_model: Any, serve: Callable[[Any], AbstractContextManager[Any]], wait_until: Any
) -> None:
    row = np.zeros((3, 4, 6), np.float32)
    with serve(mean_context) as servers, mean_context.runtime.vision("mean") as model:
        mean_model.gate.clear()
        mean_model.entered.clear()
        first = model.submit(row)
        assert mean_model.entered.wait(30)
        connection = HTTPConnection(servers.http)
        connection.request("POST", INFER, json.dumps({"inputs": [ONES]}))
        wait_until(lambda: model.stats.num_queued == 1)
        connection.close()
        wait_until(lambda: mean_context.runtime._table._num_leases == 1)
        before = model.stats.pictures
        mean_model.gate.set()
        first.result(30)
        model.submit(row).result(30)
        assert model.stats.pictures == before + 2, "the row of the client that left was not computed"
