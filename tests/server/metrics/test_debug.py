"""`/metrics` and `/debug/prefix` of the whole application, over real models."""

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from vtk.server import debug
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.prefix_doctor import PrefixDoctor
from vtk.server.request_metrics import TTFT_PARTS
from vtk.server.settings import ServerSettings

MODEL = "tiny-llama"
RULES = " You are a helpful assistant of a bank and answer in one short sentence, as politely as you can."
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def llm_runtime(tiny_llama: Any) -> Iterator[Any]:
    """The tiny Llama alone."""
    from vtk.runtime import Runtime
    from vtk.serving.settings import RuntimeSettings

    engine: Any = {"cpu_kvcache_space": 0.02, "num_threads": 1}
    runtime = Runtime(RuntimeSettings(selected=(str(tiny_llama),), engine=engine, memory_bytes=1 << 30))
    try:
        runtime.start()
        yield runtime
    finally:
        runtime.close()


def client_of(runtime: Any, **settings: Any) -> TestClient:
    return TestClient(create_app(ServerContext(runtime, ServerSettings(**settings), Metrics())), base_url=URL)


def chat(client: TestClient, system: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hello"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 3, "temperature": 0} | fields
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def scraped(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_the_parts_of_real_requests_add_up_to_their_time_to_first_token(llm_runtime: Any) -> None:
    with client_of(llm_runtime) as client:
        for i in range(3):
            chat(client, f"{i}{RULES}", n=2, seed=i)
        found = scraped(client)
    label = ("model_name", MODEL)
    whole = found["vllm:time_to_first_token_seconds_sum", frozenset([label])]
    parts = [found["vtk:ttft_part_seconds_sum", frozenset([label, ("part", part)])] for part in TTFT_PARTS]
    assert all(seconds >= 0 for seconds in parts)
    assert sum(parts) == pytest.approx(whole)
    assert found["vllm:time_to_first_token_seconds_count", frozenset([label])] == 3
    assert found["vllm:request_generation_tokens_sum", frozenset([label])] <= 3 * 2 * 3
    assert found["vllm:num_requests_running", frozenset([label])] == 0


def test_what_the_http_side_answers_is_counted_by_route_and_reason(llm_runtime: Any) -> None:
    with client_of(llm_runtime) as client:
        client.get("/v1/models")
        client.get("/no/such/path/of-a-client")
        client.post("/v1/chat/completions", json={"model": "nobody", "messages": [{"role": "user", "content": "x"}]})
        found = scraped(client)
    counts = {labels: value for (name, labels), value in found.items() if name == "vtk:http_request_seconds_count"}

    def count(route: str, method: str, status: str) -> float | None:
        return counts.get(frozenset({"route": route, "method": method, "status": status}.items()))

    assert count("/v1/models", "GET", "200") == 1
    assert count("other", "GET", "404") == 1
    assert count("/v1/chat/completions", "POST", "404") == 1
    assert found["vtk:rejected_requests_total", frozenset([("reason", "model_not_found")])] == 1
    assert not any("of-a-client" in str(key) or "nobody" in str(key) for key in found)


def test_two_chats_whose_system_text_differs_are_explained(llm_runtime: Any) -> None:
    """Case L10, from the chat to the advice."""
    with client_of(llm_runtime) as client:
        first, second = (
            chat(client, f"It is now 2026-11-29 {time}.{RULES}", cache_salt="L10") for time in ("09:15:00", "23:15:00")
        )
        (found,) = client.get("/debug/prefix", headers={"X-Cache-Salt": "L10"}).json()
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < 40
    assert (found["model"], found["prompts"]) == (MODEL, 2)
    assert [prompt["cached_tokens"] for prompt in found["recent"]] == [0, cached]
    assert first["id"] != second["id"]
    (divergence,) = found["divergences"]
    at = "system: It is now 2026-11-29 "
    assert found["recent"][1]["first_divergent_token"] == divergence["token"] == len(at)
    assert (divergence["kind"], divergence["character"]) == ("a timestamp", len("system: It is now "))
    assert divergence["values"] == ["2026-11-29 09:15:00", "2026-11-29 23:15:00"]
    assert "end of the system prompt" in divergence["hint"]


def test_prompt_text_is_in_the_debug_route_alone_and_under_its_own_salt(llm_runtime: Any) -> None:
    with client_of(llm_runtime) as client:
        for i in range(2):
            chat(client, f"Codeword xylophone number {i}.{RULES}", cache_salt="tenant-a")
        assert "xylophone" in client.get("/debug/prefix", headers={"X-Cache-Salt": "tenant-a"}).text
        for headers in ({}, {"X-Cache-Salt": "tenant-b"}):
            assert "xylophone" not in client.get("/debug/prefix", headers=headers).text
        assert "xylophone" not in client.get("/metrics").text
        assert "tenant-a" not in client.get("/metrics").text


def test_both_are_behind_the_key(llm_runtime: Any) -> None:
    with client_of(llm_runtime, api_keys=("secret",)) as client:
        for path in ("/metrics", "/debug/prefix"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_debug_routes_can_be_switched_off(llm_runtime: Any) -> None:
    with client_of(llm_runtime, debug_routes=False) as client:
        assert client.get("/debug/prefix").status_code == 404
        assert client.get("/metrics").status_code == 200


def test_a_running_server_looks_for_low_hit_rates(
    llm_runtime: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The look-out starts with the application, outlives a failure of its own, and ends with it."""
    looked = threading.Semaphore(0)
    failures = iter([RuntimeError("once")])

    def warn(self: PrefixDoctor) -> None:
        looked.release()
        for failure in failures:
            raise failure

    monkeypatch.setattr(debug, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(PrefixDoctor, "warn", warn)
    app = FastAPI()
    app.include_router(debug.router(ServerContext(llm_runtime, ServerSettings(), Metrics())))
    with caplog.at_level(logging.ERROR), TestClient(app):
        assert all(looked.acquire(timeout=30) for _ in range(3))
    assert ["prefix" in message for message in caplog.messages] == [True]
