"""HTTP on a socket, with bounds on what a client may hold without working for it.

Only uvicorn's h11 protocol is used: the guards read its state. A request head must come within `header_timeout`, a
client must take what it is sent, and beyond `max_connections` a connection is answered 503 and closed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from http import HTTPStatus
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vtk.errors import UnavailableError, VtkError
from vtk.server.errors import RefusedError, headers_of, openai_body, status_of
from vtk.server.settings import Limits

MAX_HEAD_BYTES = 32 * 1024
# Asked of the kernel for each connection: a client that reads slowly then shows within `write_timeout`, and many of
# them do not pin the megabytes each that the kernel would otherwise grow to.
SEND_BUFFER_BYTES = 128 * 1024
REFUSED_SECONDS = 1.0  # how long a refused connection stays, so that its client can read why


class GuardedProtocol(H11Protocol):
    """One connection. A subclass made by `protocol_for` says its limits."""

    limits: ClassVar[Limits]
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Then writing is paused exactly while the kernel takes no more.
        transport.set_write_buffer_limits(high=0)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if len(self.connections) > self.limits.max_connections:
            self._refuse_connection()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unwatch_head()  # from here on the keep-alive timer counts, until the next byte

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        self._unwatch_writing()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for bytes that are no HTTP, or a head larger than MAX_HEAD_BYTES."""
        self._answer(RefusedError(400, "invalid_http", msg))
        self.transport.close()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._unwatch_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.header_timeout, self._head_is_late)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._answer(RefusedError(408, "header_timeout", "The head of the request did not come in time."))
        self.transport.close()

    def _watch_writing(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self.limits.write_timeout, self._end_unless_taken, left)

    def _unwatch_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _end_unless_taken(self, left: int) -> None:
        if self.transport.get_write_buffer_size() < left:
            self._watch_writing()
        else:
            self.transport.abort()

    def _refuse_connection(self) -> None:
        self._is_refused = True
        if len(self.connections) > 2 * self.limits.max_connections:
            self.transport.abort()
            return
        self._answer(UnavailableError("The server has no connection left."))
        self.transport.write_eof()
        self.loop.call_later(REFUSED_SECONDS, self.transport.close)

    def _answer(self, error: VtkError) -> None:
        """Answer past h11, for a client that has not asked properly; nothing, once an answer has begun."""
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            return
        status = HTTPStatus(status_of(error))
        body = json.dumps(openai_body(error)).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **headers_of(error),
        }
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)


def protocol_for(limits: Limits) -> type[GuardedProtocol]:
    """The protocol of a server with these limits."""

    class LimitedProtocol(GuardedProtocol):
        pass

    LimitedProtocol.limits = limits
    return LimitedProtocol
