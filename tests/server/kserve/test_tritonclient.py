"""The real clients of NVIDIA Triton against HTTP and gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc
import tritonclient.http
from PIL import Image
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

Client = Any
Module = Any
Serve = Callable[[Any], AbstractContextManager[Any]]


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def library(kind: str) -> Module:
    return {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]


@pytest.fixture
def triton(library: Module, kind: str, mean_servers: Any) -> Iterator[Client]:
    client = library.InferenceServerClient(getattr(mean_servers, kind))
    yield client
    client.close()


def input_of(library: Module, name: str, array: npt.NDArray[Any], **options: Any) -> Any:
    tensor = library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, **options)
    return tensor


def random_rows(count: int, seed: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, 3, 4, 6)).astype(np.float32)


def test_the_server_and_its_models_are_described(triton: Client, kind: str) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("mean")
    assert triton.is_model_ready("mean", "1")
    assert not triton.is_model_ready("mean", "7")
    assert not triton.is_model_ready("other")
    options = {"as_json": True} if kind == "grpc" else {}
    assert triton.get_server_metadata(**options)["name"] == "vtk"
    metadata = triton.get_model_metadata("mean", **options)
    assert metadata["versions"] == ["1", "2"]
    shapes = {item["name"]: (item["datatype"], [int(n) for n in item["shape"]]) for item in metadata["inputs"]}
    assert shapes == {"images": ("FP32", [-1, 3, 4, 6]), "image": ("BYTES", [-1])}
    shapes = {item["name"]: (item["datatype"], [int(n) for n in item["shape"]]) for item in metadata["outputs"]}
    assert shapes == {"logits": ("FP32", [-1, 3]), "rows": ("INT64", [-1])}


def test_the_configuration_says_how_rows_are_batched(triton: Client, kind: str) -> None:
    options = {"as_json": True} if kind == "grpc" else {}
    found = triton.get_model_config("mean", **options)
    config = found["config"] if kind == "grpc" else found
    batching = config["dynamic_batching"]
    assert [int(size) for size in batching["preferred_batch_size"]] == [1, 4]
    assert (int(batching["priority_levels"]), int(batching["default_priority_level"])) == (9, 5)
    assert config["max_batch_size"] == 64
    assert [item["name"] for item in config["input"]] == ["images", "image"]


def test_statistics_count_rows_and_calls(triton: Client, library: Module, kind: str) -> None:
    options = {"as_json": True} if kind == "grpc" else {}

    def counts(**which: str) -> dict[str, tuple[int, int, int]]:
        found = triton.get_inference_statistics(**which, **options)["model_stats"]
        return {
            item["version"]: (
                int(item.get("inference_count", 0)),
                int(item.get("execution_count", 0)),
                int(item["inference_stats"]["compute_infer"].get("ns", 0)),
            )
            for item in found
        }

    before = counts()
    triton.infer("mean", [input_of(library, "images", random_rows(3, 0))])
    after = counts()
    assert set(after) == {"1", "2"}
    assert after["1"] == before["1"]
    assert after["2"][0] == before["2"][0] + 3
    assert after["2"][1] > before["2"][1]
    assert after["2"][2] > before["2"][2]
    assert counts(model_name="mean", model_version="1") == {"1": after["1"]}
    with pytest.raises(InferenceServerException, match="other"):
        counts(model_name="other")


@pytest.mark.parametrize("count", [1, 3, 9])
def test_rows_are_answered_in_their_order(triton: Client, library: Module, count: int) -> None:
    rows = random_rows(count, seed=count)
    answer = triton.infer("mean", [input_of(library, "images", rows)], request_id="seven", model_version="1")
    np.testing.assert_allclose(answer.as_numpy("logits"), rows.mean(axis=(2, 3)), rtol=1e-6)
    assert answer.as_numpy("rows").shape == (count,)
    response = answer.get_response()
    told = response if isinstance(response, dict) else {
        "id": response.id, "model_name": response.model_name, "model_version": response.model_version
    }  # fmt: skip
    assert (told["id"], told["model_name"], told["model_version"]) == ("seven", "mean", "1")


def test_only_the_named_outputs_come(triton: Client, library: Module) -> None:
    wanted = [library.InferRequestedOutput("rows")]
    answer = triton.infer("mean", [input_of(library, "images", random_rows(2, 0))], outputs=wanted)
    assert answer.as_numpy("logits") is None
    assert answer.as_numpy("rows").dtype == np.int64


def test_classes_are_named_best_first(triton: Client, library: Module) -> None:
    rows = np.zeros((2, 3, 4, 6), np.float32)
    rows[0, 2], rows[0, 1], rows[1, 0] = 3, 1, 0.5
    wanted = [library.InferRequestedOutput("logits", class_count=2)]
    found = triton.infer("mean", [input_of(library, "images", rows)], outputs=wanted).as_numpy("logits")
    assert found.tolist() == [[b"3.000000:2:blue", b"1.000000:1:green"], [b"0.500000:0:red", b"0.000000:1:green"]]


def png(color: tuple[int, int, int]) -> bytes:
    stream = BytesIO()
    Image.new("RGB", (12, 8), color).save(stream, "PNG")
    return stream.getvalue()


def test_encoded_pictures_are_prepared_by_the_recipe(triton: Client, library: Module, mean_context: Any) -> None:
    colors = [(255, 0, 0), (0, 128, 255), (9, 9, 9)]
    pictures = np.array([png(color) for color in colors], dtype=object)
    answer = triton.infer("mean", [input_of(library, "image", pictures)])
    with mean_context.runtime.vision("mean") as model:
        tensors = [model.predictor.prepare(np.full((8, 12, 3), color, np.uint8)).tensor for color in colors]
    expected = [tensor.mean(axis=(1, 2)) for tensor in tensors]
    np.testing.assert_allclose(answer.as_numpy("logits"), expected, rtol=1e-6)


def test_a_wrong_request_says_what_is_wrong(triton: Client, library: Module, kind: str) -> None:
    bad_request = {"http": "400", "grpc": "StatusCode.INVALID_ARGUMENT"}[kind]
    not_found = {"http": "404", "grpc": "StatusCode.NOT_FOUND"}[kind]
    rows = random_rows(1, 0)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"inputs": [input_of(library, "images", rows[:, :, :2])]}, bad_request, r"\[N, 3, 4, 6\].*\[1, 3, 2, 6\]"),
        ({"inputs": [input_of(library, "images", rows.astype(np.float64))]}, bad_request, "FP32 .*got FP64"),
        ({"inputs": [input_of(library, "images", random_rows(65, 0))]}, bad_request, "N from 1 to 64"),
        ({"inputs": [input_of(library, "pixels", rows)]}, bad_request, "images, image; got pixels"),
        ({"inputs": [input_of(library, "images", rows)] * 2}, bad_request, "exactly one"),
        ({"outputs": [library.InferRequestedOutput("boxes")]}, bad_request, "no output 'boxes'.*logits, rows"),
        ({"outputs": [library.InferRequestedOutput("rows", class_count=1)]}, bad_request, "classification needs"),
        ({"outputs": [library.InferRequestedOutput("logits", class_count=4)]}, bad_request, "asked for 4"),
        ({"inputs": [input_of(library, "image", np.array([b"GIF89"], object))]}, bad_request, "element 0"),
        ({"model_version": "7"}, not_found, "no version '7'"),
        ({"model_name": "other"}, not_found, "other"),
        ({"priority": 10}, bad_request, "priority must be"),
        ({"sequence_id": 5}, bad_request, "sequence"),
        ({"parameters": {"temperature": 1}}, bad_request, "'temperature' of the request is not served"),
    ]
    usual: dict[str, Any] = {"model_name": "mean", "inputs": [input_of(library, "images", rows)]}
    for changes, status, message in cases:
        with pytest.raises(InferenceServerException, match=message) as caught:
            triton.infer(**{**usual, **changes})
        assert caught.value.status() == status


def test_models_are_listed_unloaded_and_loaded(library: Module, kind: str, make_mean: Any, serve: Serve) -> None:
    mean = make_mean()
    with serve(mean.context) as servers:
        client = library.InferenceServerClient(getattr(servers, kind))
        tour_of_the_repository(client, library, kind, mean.model)
        client.close()


def tour_of_the_repository(triton: Client, library: Module, kind: str, mean_model: Any) -> None:
    def states() -> dict[tuple[str, str], str]:
        found = triton.get_model_repository_index(**({"as_json": True} if kind == "grpc" else {}))
        models = found["models"] if kind == "grpc" else found
        return {(item["name"], item["version"]): item["state"] for item in models}

    assert states() == {("mean", "1"): "READY", ("mean", "2"): "READY"}
    triton.unload_model("mean")
    assert not triton.is_model_ready("mean")
    assert "READY" not in states().values()
    with pytest.raises(InferenceServerException, match="mean") as caught:
        triton.infer("mean", [input_of(library, "images", random_rows(1, 0))])
    assert caught.value.status() == {"http": "503", "grpc": "StatusCode.UNAVAILABLE"}[kind]
    triton.load_model("mean")
    assert triton.is_model_ready("mean")

    mean_model.broken = True
    with pytest.raises(InferenceServerException, match=r"'mean' was not loaded: .*half copied"):
        triton.load_model("mean")
    assert triton.is_model_ready("mean"), "the old one serves on"
    with pytest.raises(InferenceServerException) as caught:
        triton.load_model("other")
    assert caught.value.status() == {"http": "404", "grpc": "StatusCode.NOT_FOUND"}[kind]
    with pytest.raises(InferenceServerException, match="'config' of a load request is not served"):
        triton.load_model("mean", config="{}")


def test_rows_of_two_clients_share_a_batch(
    library: Module, kind: str, mean_servers: Any, mean_context: Any, mean_model: Any, wait_until: Any
) -> None:
    """The engine is held by a first row while two clients send two rows each; then one call takes all four."""
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        client = library.InferenceServerClient(getattr(mean_servers, kind))
        answers[number] = client.infer("mean", [input_of(library, "images", random_rows(2, number))])
        client.close()

    with mean_context.runtime.vision("mean") as model:
        before = dict(model.stats.batches)
        mean_model.gate.clear()
        mean_model.entered.clear()
        first = model.submit(random_rows(1, 9)[0])
        assert mean_model.entered.wait(30)
        threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: model.stats.num_queued == 4)
        mean_model.gate.set()
        for thread in threads:
            thread.join()
        first.result(30)
        after = model.stats.batches
    assert {size: after[size] - before.get(size, 0) for size in after} == {1: 1, 4: 1}
    for number, answer in answers.items():
        np.testing.assert_allclose(
            answer.as_numpy("logits"), random_rows(2, number).mean(axis=(2, 3)), rtol=1e-6, atol=1e-7
        )
    assert sorted(np.concatenate([answer.as_numpy("rows") for answer in answers.values()])) == [0, 1, 2, 3]


def test_a_timeout_in_microseconds_ends_a_wait_in_the_queue(
    triton: Client, library: Module, kind: str, mean_context: Any, mean_model: Any, wait_until: Any
) -> None:
    with mean_context.runtime.vision("mean") as model, ThreadPoolExecutor(1) as pool:
        mean_model.gate.clear()
        mean_model.entered.clear()
        first = model.submit(random_rows(1, 9)[0])
        assert mean_model.entered.wait(30)

        def let_go() -> None:
            wait_until(lambda: model.stats.num_queued == 1)
            mean_model.gate.set()

        released = pool.submit(let_go)
        with pytest.raises(InferenceServerException, match="deadline") as caught:
            triton.infer("mean", [input_of(library, "images", random_rows(1, 0))], timeout=1)
        assert caught.value.status() == {"http": "408", "grpc": "StatusCode.DEADLINE_EXCEEDED"}[kind]
        released.result()
        first.result(30)


def test_a_lower_priority_number_is_served_first(
    library: Module, kind: str, mean_servers: Any, mean_context: Any, mean_model: Any, wait_until: Any
) -> None:
    """Each row holds its priority, and 5 where that is left to the server."""

    def ask(priority: int) -> None:
        client = library.InferenceServerClient(getattr(mean_servers, kind))
        row = np.full((1, 3, 4, 6), priority or 5, np.float32)
        client.infer("mean", [input_of(library, "images", row)], priority=priority)
        client.close()

    with mean_context.runtime.vision("mean") as model, ThreadPoolExecutor(5) as pool:
        mean_model.gate.clear()
        mean_model.entered.clear()
        first = model.submit(np.full((3, 4, 6), 7, np.float32))
        assert mean_model.entered.wait(30)
        mean_model.seen.clear()
        answers = []
        for count, priority in enumerate((9, 0, 1, 6, 4), start=1):
            answers.append(pool.submit(ask, priority))
            wait_until(lambda count=count: model.stats.num_queued == count)
        mean_model.gate.set()
        for answer in [*answers, first]:
            answer.result(30)
    assert [mean for mean in mean_model.seen if mean] == [7, 1, 4, 5, 6, 9]


def test_a_full_queue_says_when_to_come_again(library: Module, kind: str, make_mean: Any, serve: Serve) -> None:
    mean = make_mean(max_queued_pictures=2)
    with serve(mean.context) as servers, mean.context.runtime.vision("mean") as model:
        client = library.InferenceServerClient(getattr(servers, kind))
        mean.model.gate.clear()
        mean.model.entered.clear()
        futures = [model.submit(random_rows(1, 9)[0])]
        assert mean.model.entered.wait(30)
        with pytest.raises(InferenceServerException, match="the limit is 2") as caught:
            client.infer("mean", [input_of(library, "images", random_rows(3, 0))])
        assert caught.value.status() == {"http": "429", "grpc": "StatusCode.RESOURCE_EXHAUSTED"}[kind]
        futures += [model.submit(row) for row in random_rows(2, 1)]
        mean.model.gate.set()
        for future in futures:
            future.result(30)
        assert client.infer("mean", [input_of(library, "images", random_rows(1, 0))]) is not None
        client.close()
