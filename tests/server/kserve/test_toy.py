"""A real bundle behind a real runtime: what clients get is what the predictor gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from vtk.bundle import read_bundle
from vtk.predictor import Predictor, Row, open_predictor
from vtk.preprocess.decode import decode
from vtk.runtime import Runtime
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings
from vtk.serving.settings import RuntimeSettings

PICTURES = sorted((Path(__file__).parents[2] / "data/golden/toy_images").iterdir())[:3]


@pytest.fixture(scope="module")
def toy_runtime(toy_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "toy").symlink_to(toy_bundle)
    runtime = Runtime(RuntimeSettings(models=folder, kinds=frozenset({"vision"}), threads=1, memory_bytes=1 << 31))
    runtime.start()
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def toy_predictor(toy_bundle: Path) -> Iterator[Predictor]:
    with open_predictor(read_bundle(toy_bundle), threads=1) as predictor:
        yield predictor


@pytest.fixture(scope="module")
def expected(toy_predictor: Predictor) -> list[Row]:
    """Raw outputs of the three pictures."""
    return toy_predictor.infer([toy_predictor.prepare(decode(path)).tensor for path in PICTURES])


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("form", ["tensor", "picture"])
def test_raw_rows_over_the_wire_are_those_of_the_predictor(
    toy_runtime: Runtime,
    toy_predictor: Predictor,
    expected: list[Row],
    serve: Callable[[Any], AbstractContextManager[Any]],
    kind: str,
    form: str,
) -> None:
    library: Any = {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]
    if form == "tensor":
        name, array = "images", np.stack([toy_predictor.prepare(decode(path)).tensor for path in PICTURES])
    else:
        name, array = "image", np.array([path.read_bytes() for path in PICTURES], dtype=object)
    tensor = library.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    with serve(ServerContext(toy_runtime, ServerSettings(), Metrics())) as servers:
        client = library.InferenceServerClient(getattr(servers, kind))
        answer = client.infer("toy", [tensor])
        names = {item["name"] for item in client.get_model_metadata("toy", **_json(kind))["outputs"]}
        client.close()
    assert names == set(expected[0])
    for name in names:
        found = answer.as_numpy(name)
        assert found.shape == (3, *expected[0][name].shape)
        for row, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(row, right[name], rtol=1e-4, atol=1e-4)


def _json(kind: str) -> dict[str, bool]:
    return {"as_json": True} if kind == "grpc" else {}
