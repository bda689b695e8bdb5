"""NVIDIA's client for the Open Inference Protocol, over HTTP and over gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

LIBRARIES = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(params=LIBRARIES, scope="module")
def library(request: pytest.FixtureRequest) -> Any:
    return LIBRARIES[request.param]


@pytest.fixture(scope="module")
def client(library: Any, tour: Any) -> Iterator[Any]:
    address = tour.grpc if library is tritonclient.grpc else tour.url.removeprefix("http://")
    client = library.InferenceServerClient(address)
    yield client
    client.close()


def told(answer: Any) -> dict[str, Any]:
    """gRPC's messages as dictionaries, which HTTP gives anyway."""
    if isinstance(answer, dict):
        return answer
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True)


def picture_input(library: Any, *pictures: bytes) -> Any:
    tensor = library.InferInput("image", [len(pictures)], "BYTES")
    tensor.set_data_from_numpy(np.array(pictures, dtype=object))
    return tensor


def test_server_and_models_say_what_they_are(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("toy-deim")
    assert not client.is_model_ready("other")
    assert told(client.get_server_metadata())["name"] == "vtk"
    metadata = told(client.get_model_metadata("toy-deim"))
    assert metadata["inputs"][0]["datatype"] == "FP32"
    assert [int(size) for size in metadata["inputs"][0]["shape"]] == [-1, 3, 128, 128]


def test_rows_of_a_batch_are_those_of_single_pictures(client: Any, library: Any, tour: Any) -> None:
    other = tour.picture[:-2] + b"\xff\xd9"
    name = told(client.get_model_metadata("tiny-dino"))["outputs"][0]["name"]
    both = client.infer("tiny-dino", [picture_input(library, tour.picture, other)]).as_numpy(name)
    one = client.infer("tiny-dino", [picture_input(library, tour.picture)]).as_numpy(name)
    assert both.shape == (2, *one.shape[1:])
    np.testing.assert_allclose(both[0], one[0], rtol=1e-4, atol=1e-4)


def test_a_raw_tensor_is_answered_as_the_picture_it_came_from(client: Any, library: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 3, 64, 64)).astype(np.float32)
    metadata = told(client.get_model_metadata("tiny-dino"))
    tensor = library.InferInput(metadata["inputs"][0]["name"], list(rows.shape), "FP32")
    tensor.set_data_from_numpy(rows)
    wanted = [library.InferRequestedOutput(metadata["outputs"][0]["name"])]
    answer = client.infer("tiny-dino", [tensor], outputs=wanted, request_id="tour")
    alone = library.InferInput(metadata["inputs"][0]["name"], [1, 3, 64, 64], "FP32")
    alone.set_data_from_numpy(rows[1:2])
    found, expected = (
        result.as_numpy(metadata["outputs"][0]["name"]) for result in (answer, client.infer("tiny-dino", [alone]))
    )
    np.testing.assert_allclose(found[1], expected[0], rtol=1e-4, atol=1e-4)
    assert told(answer.get_response())["id"] == "tour"


def test_models_are_unloaded_and_loaded(client: Any) -> None:
    client.unload_model("tiny-dino")
    assert not client.is_model_ready("tiny-dino")
    client.load_model("tiny-dino")
    assert client.is_model_ready("tiny-dino")
    index = told_index(client.get_model_repository_index())
    assert index == {"smollm2": "READY", "tiny-dino": "READY", "toy-deim": "READY"}


def told_index(answer: Any) -> dict[str, str]:
    models = answer if isinstance(answer, list) else told(answer)["models"]
    return {model["name"]: model["state"] for model in models}


def test_a_damaged_picture_is_refused_by_its_number(client: Any, library: Any, tour: Any) -> None:
    with pytest.raises(InferenceServerException, match="element 1"):
        client.infer("toy-deim", [picture_input(library, tour.picture, tour.picture[:100])])
