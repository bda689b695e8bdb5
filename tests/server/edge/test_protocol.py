"""What a client may hold of the server without working for it: each test fails when its guard is taken out."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from vtk.server.protocol import MAX_HEAD_BYTES, GuardedProtocol, protocol_for
from vtk.server.settings import Limits

Serve = Callable[..., int]
Connect = Callable[[int], socket.socket]
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
REQUEST = HEAD + b"\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes; the connection's own time-out fails the test."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def read_until(connection: socket.socket, end: bytes) -> bytes:
    answer = b""
    while not answer.endswith(end) and (part := connection.recv(65536)):
        answer += part
    assert end in answer
    return answer


def told(answer: bytes) -> tuple[int, dict[str, str], str]:
    """Status, headers and error code of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *headers = head.decode().split("\r\n")
    named = {name.lower(): value for name, _, value in (line.partition(": ") for line in headers)}
    return int(status.split()[1]), named, json.loads(body)["error"]["code"]


@pytest.mark.parametrize("head", [b"", b"G", HEAD, HEAD + b"X-Slow: 1\r\n"])
def test_a_head_that_does_not_come_is_408(serve: Serve, connect: Connect, head: bytes) -> None:
    connection = connect(serve(hello, header_timeout=0.05))
    connection.sendall(head)
    status, headers, code = told(read_all(connection))
    assert (status, headers["connection"], code) == (408, "close", "header_timeout")


def test_a_head_that_trickles_is_408(serve: Serve, connect: Connect) -> None:
    """Slowloris: there is always something to read, and never a request."""
    connection = connect(serve(hello, header_timeout=0.2))
    answer = b""
    connection.sendall(HEAD)
    connection.settimeout(0.02)
    for _ in range(1000):
        try:
            connection.sendall(b"X-A: b\r\n")
            answer += connection.recv(65536)
            break
        except TimeoutError:
            continue
    assert told(answer)[0] == 408


def test_the_second_request_of_a_connection_is_hurried_too(serve: Serve, connect: Connect) -> None:
    connection = connect(serve(hello, header_timeout=0.1))
    connection.sendall(REQUEST)
    read_until(connection, b"hello")
    connection.sendall(b"GET")
    assert told(read_all(connection))[0] == 408


def test_an_answer_that_takes_long_is_no_late_head(serve: Serve, connect: Connect) -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.2)
        await hello(scope, receive, send)

    connection = connect(serve(slow, header_timeout=0.05))
    connection.sendall(REQUEST)
    read_until(connection, b"hello")


def test_a_huge_head_is_400(serve: Serve, connect: Connect) -> None:
    connection = connect(serve(hello))
    connection.sendall(HEAD + b"X-Large: " + b"x" * MAX_HEAD_BYTES)
    status, _, code = told(read_all(connection))
    assert (status, code) == (400, "invalid_http")


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\xfc\x03", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\0" * 100]
)
def test_what_is_no_http_is_400(serve: Serve, connect: Connect, garbage: bytes) -> None:
    connection = connect(serve(hello))
    connection.sendall(garbage + b"\r\n\r\n")
    assert told(read_all(connection))[0] == 400


def test_garbage_after_an_answer_has_begun_ends_it_without_a_second_one(serve: Serve, connect: Connect) -> None:
    async def half(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    connection = connect(serve(half))
    connection.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    read_until(connection, b"half\r\n")
    connection.sendall(b"no chunk\r\n")
    assert b"HTTP/1.1" not in read_all(connection)


def test_one_connection_too_many_is_503_and_the_others_go_on(serve: Serve, connect: Connect) -> None:
    port = serve(hello, max_connections=2)
    held = [connect(port) for _ in range(2)]
    for connection in held:
        connection.sendall(REQUEST)
        read_until(connection, b"hello")
    extra = connect(port)
    extra.sendall(REQUEST)
    status, headers, code = told(read_all(extra))
    assert (status, headers["retry-after"], code) == (503, "1", "unavailable")
    held[0].sendall(REQUEST)
    read_until(held[0], b"hello")


def test_a_client_that_takes_nothing_is_cut_off(serve: Serve, connect: Connect) -> None:
    """The stream's task ends, and with it what it held."""
    ended = threading.Event()

    async def flood(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        left = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        ended.set()

    connection = connect(serve(flood, write_timeout=0.1))
    connection.sendall(REQUEST)
    assert ended.wait(20)


def test_nor_may_it_leave_the_end_of_an_answer_lying(serve: Serve, connect: Connect) -> None:
    """For the app it is complete, but a few bytes that the kernel does not take hold the connection."""
    lost = threading.Event()
    transports: list[asyncio.Transport] = []

    class Watched(GuardedProtocol):
        limits = Limits(write_timeout=0.1)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transports.append(transport)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async def until_full(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        while transports[0].get_write_buffer_size() == 0:
            await send({"type": "http.response.body", "body": b"x" * 4096, "more_body": True})
        # Past `send`, which would wait here as it should.
        transports[0].close()

    connection = connect(serve(until_full, protocol=Watched))
    connection.sendall(REQUEST)
    assert lost.wait(20)


class FakeTransport:
    """A transport whose buffer holds what the test says."""

    def __init__(self) -> None:
        self.left = 1000
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.aborted = True


def test_a_slow_reader_stays_as_long_as_it_takes_something() -> None:
    calls: list[tuple[float, Callable[..., None], Any]] = []

    class Loop:
        def call_later(self, delay: float, call: Callable[..., None], *args: Any) -> None:
            calls.append((delay, call, *args))

    transport = FakeTransport()
    protocol = object.__new__(protocol_for(Limits(write_timeout=7.0)))
    protocol.transport, protocol.loop = transport, Loop()  # type: ignore[assignment]
    protocol._watch_writing()
    for left in (999, 500, 1):
        transport.left = left
        delay, call, *args = calls.pop()
        assert delay == 7.0
        call(*args)
        assert not transport.aborted
    _, call, *args = calls.pop()
    call(*args)
    assert transport.aborted


def test_the_server_does_not_say_what_it_is(serve: Serve, connect: Connect) -> None:
    connection = connect(serve(hello))
    connection.sendall(REQUEST)
    assert b"server:" not in read_until(connection, b"hello").lower()
