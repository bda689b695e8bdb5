"""`vtk serve` as a user starts it, over real bundles and a language model."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from PIL import Image
from starlette.testclient import TestClient

from vtk.runtime import Runtime
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings

CHAT = {"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
KEY = "a-key-for-this-test"
OFFLINE = Path(__file__).parents[2] / "data" / "offline"


def picture(width: int, height: int) -> bytes:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def detect(client: Any, *pictures: bytes, url: str = "") -> Any:
    files = [("images", (f"{index}.png", data, "image/png")) for index, data in enumerate(pictures)]
    return client.post(f"{url}/v1/vision/detect", files=files, data={"model": "toy-deim"})


def test_it_says_what_it_serves_and_where(server: Any) -> None:
    *models, address = server.ready_lines
    assert address == f"Serving on http://127.0.0.1:{server.port} (Ctrl-C ends it)"
    assert [line.split(":")[0] for line in models] == [
        f"{name} version 1" for name in ("tiny-dino", "tiny-llama", "toy-deim")
    ]
    assert models[2] == "toy-deim version 1: vision (detect), ort on cpu, fp32"


def test_health_tells_the_effective_device_and_precision_of_each_model(server: Any) -> None:
    """Case V60."""
    told = {model["name"]: model for model in httpx.get(f"{server.url}/health").json()["models"]}
    assert {name: (model["kind"], model["state"], model["device"]) for name, model in told.items()} == {
        "tiny-dino": ("vision", "ready", "cpu"), "toy-deim": ("vision", "ready", "cpu"),
        "tiny-llama": ("llm", "ready", "cpu"),
    }  # fmt: skip
    assert told["toy-deim"]["backend"] == "ort"
    assert all(model["precision"] for model in told.values())


def test_a_device_that_is_not_there_ends_it(models_folder: Path) -> None:
    """Case V60: never the CPU in its place."""
    command = [sys.executable, "-m", "vtk.cli.main", "serve", "--models", str(models_folder), "--port", "0"]
    done = subprocess.run([*command, "--device", "cuda"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "cuda" in done.stderr.lower()
    assert done.stdout == ""


def test_fifty_sizes_of_pictures_reach_the_backend_in_as_many_shapes_as_it_has_graphs(
    runtime: Runtime, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case V61: with a shape of its own for each, the arena of the device grows without end."""
    shapes: list[tuple[int, ...]] = []
    with runtime.vision("toy-deim") as model:
        for engine in model.predictor.engines.values():
            monkeypatch.setattr(engine, "infer", seen(engine.infer, shapes))
        sizes = [(17 + 3 * i, 200 - 3 * i) for i in range(50)]
        for start in range(0, 50, 10):
            answer = detect(client, *(picture(*size) for size in sizes[start : start + 10]))
            assert [result["width"] for result in answer.json()["results"]] == [w for w, _ in sizes[start : start + 10]]
        assert set(shapes) <= {(batch, 3, 128, 128) for batch in model.predictor.batch_sizes}


def seen(infer: Callable[..., Any], shapes: list[tuple[int, ...]]) -> Callable[..., Any]:
    def watched(feeds: dict[str, Any]) -> Any:
        shapes.extend(array.shape for array in feeds.values())
        return infer(feeds)

    return watched


def test_a_request_leaves_the_spans_of_its_stages(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("vtk.server.app.open_tracing", lambda endpoint: provider)
    app = create_app(ServerContext(runtime, ServerSettings(otlp_endpoint="http://127.0.0.1:1"), Metrics()))
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    for stream in (False, True):
        assert client.post("/v1/chat/completions", json=CHAT | {"stream": stream}).status_code == 200
        names = [span.name for span in exporter.get_finished_spans()]
        parts = ["tokenize", "queue", "kv_allocation", "prefill", "send", "decode"]
        assert names == [*parts, "POST /v1/chat/completions"]
        exporter.clear()
    assert detect(client, picture(30, 20)).status_code == 200
    names = [span.name for span in exporter.get_finished_spans()]
    assert names == ["decode", "preprocess", "queue", "infer", "postprocess", "POST /v1/vision/detect"]


def test_it_serves_with_network_and_installer_blocked(start_server: Callable[..., Any], tmp_path: Path) -> None:
    """Case V66."""
    blocked = tmp_path / "blocked.log"
    server = start_server("--grpc-port", "0", PYTHONPATH=str(OFFLINE), BLOCKED_LOG=str(blocked))
    assert httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 200
    assert detect(httpx, picture(30, 20), url=server.url).status_code == 200
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert not blocked.exists(), blocked.read_text()


def test_a_key_file_guards_http(start_server: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    server = start_server("--api-key", str(path), "--vision")
    assert httpx.get(f"{server.url}/v1/models").status_code == 401
    models = httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
    assert [model["id"] for model in models.json()["data"]] == ["tiny-dino", "toy-deim"]
    assert KEY not in server.log.read_text()
