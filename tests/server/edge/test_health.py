"""What the probes say."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from starlette.testclient import TestClient

from vtk.serving.model_table import ModelStatus

Client = Callable[..., TestClient]
READY = ModelStatus("d", "2", "vision", "detect", "ready", "", 10, "ort", "cpu", "fp32", "a" * 64, "b" * 64, 1.0)
FAILED = ModelStatus("m", "1", "llm", "generate", "failed", "CUDA is not there.")


def test_health_tells_what_really_computes_each_model(make_client: Client, bare: Any) -> None:
    """Case V60: asking for a device and getting another must be visible."""
    bare.models += [READY, FAILED]
    answer = make_client().get("/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert answer.json()["version"] == version("vtk-deploy")
    assert answer.json()["models"] == [
        {
            "name": "d", "version": "2", "kind": "vision", "task": "detect", "state": "ready", "reason": "",
            "backend": "ort", "device": "cpu", "precision": "fp32",
        },
        {
            "name": "m", "version": "1", "kind": "llm", "task": "generate", "state": "failed",
            "reason": "CUDA is not there.", "backend": "", "device": "", "precision": "",
        },
    ]  # fmt: skip


def test_a_server_that_loads_lives_and_is_not_ready(make_client: Client, bare: Any) -> None:
    bare.is_ready = False
    client = make_client()
    assert (client.get("/health/live").status_code, client.get("/health/live").json()) == (200, {"status": "live"})
    for path in ("/health", "/health/ready"):
        assert (client.get(path).status_code, client.get(path).json()["status"]) == (503, "starting")
    bare.is_ready = True
    assert client.get("/health/ready").json() == {"status": "ready"}


def test_the_version_is_the_installed_one(make_client: Client) -> None:
    assert make_client().get("/version").json() == {"version": version("vtk-deploy")}
