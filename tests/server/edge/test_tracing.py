"""Spans of requests and their stages, received as a collector would."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.testclient import TestClient

from vtk.errors import MissingDependencyError, UsageError
from vtk.server.tracing import add_past_stages, add_stage, open_tracing

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """What arrives, instead of going to the endpoint."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("vtk.server.app.open_tracing", lambda endpoint: provider)
    return exporter


def routes(app: FastAPI) -> None:
    @app.post("/task/{name}")
    async def work(name: str) -> None:
        now = time.monotonic()
        add_stage("queue", now - 3.0, now - 1.0, {"model": "m"})
        await asyncio.gather(*(asyncio.to_thread(add_past_stages, {"decode": 0.25, "infer": 0.5}) for _ in range(2)))

    @app.post("/boom")
    def boom() -> None:
        raise ValueError("the secret of the server")


def traced(make_client: Callable[..., TestClient]) -> TestClient:
    return make_client(routes, otlp_endpoint="http://127.0.0.1:1")


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def test_a_request_and_its_stages_are_one_trace_of_its_client(make_client: Any, exporter: InMemorySpanExporter) -> None:
    headers = PARENT | {"X-Request-Id": "call-3", "Authorization": "Bearer hush"}
    traced(make_client).post("/task/hush?q=hush", content=b"hush", headers=headers)
    *stages, request = exporter.get_finished_spans()
    assert (request.name, request.kind) == ("POST /task/{name}", SpanKind.SERVER)
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST", "http.route": "/task/{name}", "http.response.status_code": 200,
        "vtk.request_id": "call-3",
    }  # fmt: skip
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert sorted(stage.name for stage in stages) == ["decode", "decode", "infer", "infer", "queue"]
    assert all(stage.parent == request.get_span_context() for stage in stages)
    assert all("hush" not in span.to_json() for span in (*stages, request))


def test_stages_have_the_times_they_were_told(make_client: Any, exporter: InMemorySpanExporter) -> None:
    before = time.time_ns()
    traced(make_client).post("/task/a")
    after = time.time_ns()
    stages = {stage.name: stage for stage in exporter.get_finished_spans()}
    lengths = {name: seconds(stages[name]) for name in ("queue", "decode", "infer")}
    assert lengths == pytest.approx({"queue": 2.0, "decode": 0.25, "infer": 0.5}, abs=0.05)
    assert stages["decode"].end_time == pytest.approx(stages["infer"].start_time, abs=50_000_000)
    assert before - 1_050_000_000 <= (stages["queue"].end_time or 0) <= after - 950_000_000
    assert dict(stages["queue"].attributes or {}) == {"model": "m"}


def test_a_failure_is_marked_and_its_text_is_not_sent(make_client: Any, exporter: InMemorySpanExporter) -> None:
    client = traced(make_client)
    client.post("/boom")
    client.get("/nothing")
    failed, unknown = exporter.get_finished_spans()
    assert (failed.status.status_code, unknown.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert unknown.name == "GET other"
    assert "secret" not in failed.to_json()


@pytest.mark.parametrize("header", ["", "junk", f"00-{'0' * 32}-{SPAN_ID}-01"])
def test_a_bad_traceparent_begins_a_trace(make_client: Any, exporter: InMemorySpanExporter, header: str) -> None:
    assert traced(make_client).get("/health", headers={"traceparent": header}).status_code == 200
    (request,) = exporter.get_finished_spans()
    assert request.parent is None


def test_without_an_endpoint_nothing_is_traced(make_client: Any, exporter: InMemorySpanExporter) -> None:
    assert make_client(routes).post("/task/a").status_code == 200
    add_stage("queue", 0.0, 1.0)
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("path", ["", "/", "/v1/traces", "/other"])
def test_a_collector_gets_them_at_the_path_it_expects(path: str) -> None:
    got: list[tuple[str, str | None]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["content-type"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        provider = open_tracing(f"http://127.0.0.1:{server.server_port}{path}")
        provider.get_tracer("test").start_span("one").end()
        provider.shutdown()
        thread.join()
    assert got == [(path if len(path) > 1 else "/v1/traces", "application/x-protobuf")]


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://a", "http://", "http://[", ""])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(UsageError, match="OTLP endpoint"):
        open_tracing(endpoint)


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingDependencyError, match=r"vtk-deploy\[otel\]"):
        open_tracing("http://localhost:4318")


def test_a_server_without_tracing_never_imports_the_sdk() -> None:
    code = "import sys, vtk.server.app; assert not any(name.startswith('opentelemetry.sdk') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
