"""How long HTTP requests take and how they end, by route."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vtk.server.layers import Layer
from vtk.server.logs import CLIENT_LEFT

if TYPE_CHECKING:
    from vtk.server.metrics import Metrics


class HttpMetrics(Layer):
    """A layer of the application; outside of those that refuse requests, so that it sees what they refuse."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        super().__init__(app)
        self._metrics = metrics

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status = time.monotonic(), CLIENT_LEFT

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, tell)
        finally:
            seconds = time.monotonic() - started
            self._metrics.http_request(route=_route(scope), method=_method(scope), status=status, seconds=seconds)
            code = scope.get("state", {}).get("error_code")
            if code is not None:
                self._metrics.rejected(code)


def _route(scope: Scope) -> str:
    """The template of the path, which the router leaves behind: a path may hold anything."""
    return str(getattr(scope.get("route"), "path", "other"))


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "other"
