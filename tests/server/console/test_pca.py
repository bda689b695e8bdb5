import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from vtk.postprocess.results import Embeddings
from vtk.predictor import open_predictor
from vtk.server.app import create_app
from vtk.server.console.feature_colors import feature_colors
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings

PICTURES = sorted((Path(__file__).parents[2] / "data/golden/toy_images").iterdir())[:3]


def ask(client: TestClient, *paths: Path, **fields: Any) -> Any:
    return client.post("/console/api/pca", data=fields, files=[("images", path.read_bytes()) for path in paths])


def told(response: Any) -> str:
    return response.json()["error"]["message"]


def test_the_pixels_are_the_patches_of_all_pictures_in_one_basis(client: TestClient, embed_bundle: Path) -> None:
    from vtk.bundle import read_bundle
    from vtk.preprocess.decode import decode

    with open_predictor(read_bundle(embed_bundle)) as predictor:
        results = predictor([decode(path.read_bytes()) for path in PICTURES])
    grids = [result.patches for result in results if isinstance(result, Embeddings)]
    response = ask(client, *PICTURES, model="tiny-dino")
    assert response.status_code == 200
    assert response.headers["content-type"] == "image/png"
    picture = np.asarray(Image.open(io.BytesIO(response.content)))
    assert picture.shape == (3 * 4, 4, 3)
    expected = np.concatenate(feature_colors([grid for grid in grids if grid is not None]))
    # Batches of the server may round otherwise than batches of one.
    assert np.abs(picture.astype(int) - expected).max() <= 1


def test_the_model_may_be_left_out_where_one_embeds(client: TestClient) -> None:
    assert ask(client, PICTURES[0]).content == ask(client, PICTURES[0], model="tiny-dino").content


def test_a_model_for_boxes_is_refused(client: TestClient) -> None:
    response = ask(client, PICTURES[0], model="toy-deim")
    assert response.status_code == 400
    assert "does detect, not embed" in told(response)


@pytest.mark.parametrize(("model", "status"), [("nobody", 404), ("tiny-llama", 404), ("../tiny-dino", 404)])
def test_a_name_of_no_vision_model_is_not_found(client: TestClient, model: str, status: int) -> None:
    assert ask(client, PICTURES[0], model=model).status_code == status


def test_a_damaged_picture_and_an_empty_request_are_told(client: TestClient, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(PICTURES[0].read_bytes()[:100])
    response = ask(client, PICTURES[0], broken, model="tiny-dino")
    assert response.status_code == 400
    assert response.json()["error"]["code"].startswith("image_")
    assert ask(client, model="tiny-dino").status_code == 400


def test_a_deadline_that_has_passed_is_told(client: TestClient) -> None:
    assert ask(client, PICTURES[0], model="tiny-dino", timeout_ms="0.000001").status_code == 408


class WithoutPatches:
    """A model whose backbone pools everything, as convolutional ones do."""

    name = "pooled"
    bundle = SimpleNamespace(manifest=SimpleNamespace(task="embed"))

    async def answer(self, picture: bytes, **_: Any) -> Any:
        return SimpleNamespace(result=Embeddings(np.ones(4, np.float32), None, (2, 2)))


def test_a_model_without_patches_is_told_from_one_that_has_them(context: ServerContext) -> None:
    @contextmanager
    def vision(name: str, version: str | None = None) -> Iterator[WithoutPatches]:
        yield WithoutPatches()

    runtime: Any = SimpleNamespace(vision=vision, is_draining=False, statuses=list, arbiter=None, budget=None)
    with TestClient(create_app(ServerContext(runtime, ServerSettings(), Metrics()))) as client:
        client.base_url = "http://127.0.0.1:8000"
        response = ask(client, PICTURES[0], model="pooled")
    assert response.status_code == 400
    assert "no patch features" in told(response)
