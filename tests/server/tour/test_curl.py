"""What people type."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def curl(*words: str) -> bytes:
    command = ["curl", "--silent", "--show-error", "--max-time", "60", "--noproxy", "*", *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


@pytest.fixture
def picture(tour: Any, tmp_path: Path) -> Path:
    path = tmp_path / "picture.jpg"
    path.write_bytes(tour.picture)
    return path


def test_a_picture_is_detected_as_by_the_reference(tour: Any, picture: Path) -> None:
    answer = json.loads(curl("-F", f"images=@{picture}", "-F", "model=toy-deim", f"{tour.url}/v1/vision/detect"))
    found = answer["results"][0]["detections"]
    expected = tour.expected
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one["category_id"] == other["category_id"]
        assert one["score"] == pytest.approx(other["score"], abs=2e-3)
        assert one["bbox_xyxy"] == pytest.approx(other["bbox_xyxy"], abs=0.3)


def test_a_picture_comes_back_annotated(tour: Any, picture: Path, size_of: Any) -> None:
    form = ("-F", f"images=@{picture}", "-F", "model=toy-deim", "-F", "response=annotated")
    drawn = curl(*form, f"{tour.url}/v1/vision/detect")
    assert size_of(drawn) == size_of(tour.picture)
    assert drawn != tour.picture


def test_a_chat_streams(tour: Any) -> None:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "stream": True,
    }
    words = ("--no-buffer", "-H", "Content-Type: application/json", "-d", json.dumps(body))
    *events, done, rest = curl(*words, f"{tour.url}/v1/chat/completions").decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    deltas = [json.loads(event.removeprefix("data: "))["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("content") or "" for delta in deltas) == "The capital of France is Paris."


def test_health_and_metrics(tour: Any) -> None:
    health = json.loads(curl(f"{tour.url}/health"))
    assert health["status"] == "ready"
    assert {model["name"]: model["device"] for model in health["models"]} == {
        "smollm2": "cpu",
        "tiny-dino": "cpu",
        "toy-deim": "cpu",
    }
    metrics = curl(f"{tour.url}/metrics").decode()
    assert 'vllm:num_requests_running{model_name="smollm2"} 0.0' in metrics


def test_what_is_wrong_is_said_with_its_status(tour: Any) -> None:
    answer = curl("-w", "%{http_code}", "-d", "{", "-H", "Content-Type: application/json", f"{tour.url}/v1/completions")
    assert answer.endswith(b"400")
    assert json.loads(answer[:-3])["error"]["code"]
