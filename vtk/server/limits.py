"""What bounds one request from outside: the size and the pace of its body, and a server that is ending."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vtk.errors import UnavailableError
from vtk.server.errors import RefusedError, error_response
from vtk.server.layers import Layer
from vtk.server.settings import MIB, Limits

# A body may take longer than body_timeout only while it comes at least this fast: one byte every 29 s is an attack.
MIN_BODY_RATE = 1024  # bytes per second
_DISCONNECT: Message = {"type": "http.disconnect"}
_CLOSE = {"Connection": "close"}


class BodyLimit(Layer):
    """Answers 413 to a body larger than `max_body_bytes`, declared or chunked, and 408 to one that stops coming.

    A body with two lengths is answered 400 and its connection closed: a proxy may have gone by the other (RFC 9112,
    6.1).
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        super().__init__(app)
        self._limits = limits

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        body = _Body(receive, self._limits)
        if "content-length" in headers and "transfer-encoding" in headers:
            body.refused = RefusedError(400, "invalid_http", "The request says the length of its body in two ways.")
        elif declared.isdigit() and int(declared) > self._limits.max_body_bytes:
            body.refused = _too_large(self._limits)
        else:
            await self._run(scope, body, send)
        if body.refused is not None:
            response = error_response(body.refused, scope)
            response.headers.update(_CLOSE)
            await response(scope, receive, send)

    async def _run(self, scope: Scope, body: _Body, send: Send) -> None:
        """To the app a refused body looks like a client that left; whatever it then says is not sent."""

        async def forward(message: Message) -> None:
            if body.refused is None:
                await send(message)

        await self.app(scope, body.receive, forward)


class _Body:
    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive = receive
        self._limits = limits
        self._size = 0
        self._started = time.monotonic()
        self._complete = False
        self.refused: RefusedError | None = None

    async def receive(self) -> Message:
        if self._complete:
            return await self._receive()
        if self.refused is not None:
            return _DISCONNECT
        try:
            message = await asyncio.wait_for(self._receive(), self._patience())
        except asyncio.TimeoutError:
            self.refused = RefusedError(408, "body_timeout", "The body of the request did not come in time.")
            return _DISCONNECT
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._size > self._limits.max_body_bytes:
            self.refused = _too_large(self._limits)
            return _DISCONNECT
        return message

    def _patience(self) -> float:
        limit = self._limits.body_timeout
        return min(limit, max(0.0, self._started + limit + self._size / MIN_BODY_RATE - time.monotonic()))


class Draining(Layer):
    """Answers 503 to what comes after the server was told to end; the probes still say how it is."""

    def __init__(self, app: ASGIApp, is_draining: Callable[[], bool]) -> None:
        super().__init__(app)
        self._is_draining = is_draining

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if self._is_draining() and not scope["path"].startswith(("/health", "/v2/health/")):
            response = error_response(UnavailableError("The server is shutting down."), scope)
            response.headers.update(_CLOSE)
            app = response
        await app(scope, receive, send)


def _too_large(limits: Limits) -> RefusedError:
    return RefusedError(
        413,
        "body_too_large",
        f"The body is larger than {limits.max_body_bytes / MIB:g} MiB.",
        hint="Send less, or start the server with a larger --max-body-bytes.",
    )
