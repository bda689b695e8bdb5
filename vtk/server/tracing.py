"""OpenTelemetry traces, where they were asked for: a span for each request, and below it one for each stage of it.

A request with a W3C `traceparent` becomes part of the trace of its client. Spans hold names, times, sizes and request
ids, never what was said or shown. Nothing is sent anywhere without `--otlp-endpoint`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vtk.errors import MissingDependencyError, UsageError
from vtk.server.layers import Layer
from vtk.server.logs import CLIENT_LEFT, request_id

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, str | int]
TRACES_PATH = "/v1/traces"


@dataclass(frozen=True, eq=False)
class _TracedRequest:
    tracer: Tracer
    context: Context


# Of the request that the running task works for; asyncio hands it on to the tasks and threads that it starts.
_current: ContextVar[_TracedRequest | None] = ContextVar("vtk_traced_request", default=None)


def open_tracing(endpoint: str) -> TracerProvider:
    """What sends spans to `endpoint`, a URL whose path is /v1/traces unless it has one, in the background.

    Raises MissingDependencyError without the extra `otel`, UsageError for what is no URL.
    """
    try:
        parts = urlsplit(endpoint)
    except ValueError:  # brackets without an address
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"The OTLP endpoint is a URL such as http://localhost:4318, got '{endpoint}'.")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingDependencyError("opentelemetry-sdk", needed_for="--otlp-endpoint", extra="otel") from error
    url = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + TRACES_PATH
    resource = Resource.create({"service.name": "vtk", "service.version": version("vtk-deploy")})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return provider


def add_stage(name: str, start: float, end: float, attributes: Attributes | None = None) -> None:
    """A span below the request that the caller works for, from `start` to `end` on the monotonic clock.

    Where no request is traced, nothing.
    """
    request = _current.get()
    if request is None:
        return
    span = request.tracer.start_span(name, request.context, start_time=_epoch_ns(start), attributes=attributes)
    span.end(_epoch_ns(end))


def add_past_stages(seconds: Mapping[str, float], attributes: Attributes | None = None) -> None:
    """Spans for stages that followed one another and of which the last has just ended; `seconds` of each, in order."""
    start = time.monotonic() - sum(seconds.values())
    for name, length in seconds.items():
        add_stage(name, start, start + length, attributes)
        start += length


class Tracing(Layer):
    """The span of every request; `add_stage` finds it while the request is worked on."""

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        super().__init__(app)
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("vtk")
        self._propagator = TraceContextTextMapPropagator()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        status = CLIENT_LEFT

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        parent = self._propagator.extract(dict(Headers(scope=scope)))
        span = self._tracer.start_span(scope["method"], parent, SpanKind.SERVER)
        token = _current.set(_TracedRequest(self._tracer, set_span_in_context(span)))
        try:
            await self.app(scope, receive, watch)
        finally:
            _current.reset(token)
            route = getattr(scope.get("route"), "path", "other")
            span.update_name(f"{scope['method']} {route}")
            span.set_attributes(
                {
                    "http.request.method": scope["method"],
                    "http.route": route,
                    "http.response.status_code": status,
                    "vtk.request_id": request_id(scope),
                }
            )
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            span.end()


def _epoch_ns(moment: float) -> int:
    """A moment of the monotonic clock on the clock that spans are dated by."""
    return time.time_ns() + round((moment - time.monotonic()) * 1e9)
