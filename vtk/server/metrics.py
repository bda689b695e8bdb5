"""Everything that the server measures, in a registry of its own: two servers of one process do not mix."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from vtk.server.request_metrics import RequestMetrics, RequestTrace
from vtk.server.runtime_collector import RuntimeCollector

if TYPE_CHECKING:
    from vtk.runtime import Runtime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """The metrics of one server. Counters and histograms are told; what has a state is asked at scrape time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._watched: Runtime | None = None
        self._requests = RequestMetrics(self.registry)
        self._rejected = Counter(
            "vtk:rejected_requests",
            "Requests answered with an error, by its code.",
            ("reason",),
            registry=self.registry,
        )
        self._http = Histogram(
            "vtk:http_request_seconds",
            "HTTP requests, from their head to the last byte of the answer.",
            ("route", "method", "status"),
            buckets=_SECONDS,
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)

    def watch(self, runtime: Runtime) -> None:
        """Show the models, the device and the memory of `runtime` too. A second call for the same one does nothing."""
        if self._watched is not runtime:
            assert self._watched is None, "these metrics are of another runtime"
            self.registry.register(RuntimeCollector(runtime))
            self._watched = runtime

    def trace(self, *, model: str, request_id: str) -> RequestTrace:
        """The trace of a language request that has just arrived."""
        return RequestTrace(self._requests, model=model, request_id=request_id, clock=self._clock)

    def rejected(self, reason: str) -> None:
        """A request was answered with an error; `reason` is a fixed word such as `code_of(error)`, never a client's."""
        self._rejected.labels(reason).inc()

    def http_request(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """An HTTP request was answered. `route` is the template of the path, or "other": never what a client typed."""
        self._http.labels(route, method, str(status)).observe(seconds)

    def render(self) -> bytes:
        """The state of all metrics in Prometheus' text format (CONTENT_TYPE)."""
        return generate_latest(self.registry)
