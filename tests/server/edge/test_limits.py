"""Bodies that are too large or too slow, and a server that is ending."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient
from starlette.types import Message

from vtk.server.limits import MIN_BODY_RATE, BodyLimit
from vtk.server.settings import Limits

Client = Callable[..., TestClient]
LIMIT = 1000


def echo(app: FastAPI) -> None:
    @app.post("/length")
    async def length(request: Request) -> int:
        return len(await request.body())


def chunks(*sizes: int) -> Iterator[bytes]:
    return (b"x" * size for size in sizes)


@pytest.fixture
def client(make_client: Client) -> TestClient:
    return make_client(echo, limits=Limits(max_body_bytes=LIMIT))


def test_a_body_may_have_the_limit(client: TestClient) -> None:
    assert client.post("/length", content=b"x" * LIMIT).json() == LIMIT
    assert client.post("/length", content=chunks(400, 600)).json() == LIMIT


@pytest.mark.parametrize("content", [b"x" * (LIMIT + 1), list(chunks(400, 601)), list(chunks(1, LIMIT, 1, 1))])
def test_one_byte_more_is_413_declared_or_not(client: TestClient, content: bytes | list[bytes]) -> None:
    answer = client.post("/length", content=content if isinstance(content, bytes) else iter(content))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/vision/detect"])
def test_every_route_is_behind_it(client: TestClient, path: str) -> None:
    assert client.post(path, content=chunks(900, 900), headers={"Content-Type": "application/json"}).status_code == 413


def test_kserve_is_told_in_its_own_shape(client: TestClient) -> None:
    answer = client.post("/v2/models/m/infer", content=b"x" * 2000)
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("The body is larger")


def test_a_declared_size_is_refused_before_a_byte_of_it_is_read() -> None:
    """The app is never called, and nothing is received."""
    sent = run_layer(lambda: pytest.fail("received"), headers=[(b"content-length", b"1001")])
    assert sent[0]["status"] == 413


def run_layer(receive: Callable[[], Any], headers: list[tuple[bytes, bytes]], **limits: Any) -> list[Message]:
    """What BodyLimit sends around an app that reads its whole body and then answers 200."""
    sent: list[Message] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200 if message["type"] == "http.request" else 400})
        await send({"type": "http.response.body"})

    async def receive_one() -> Message:
        result: Message = await value if asyncio.iscoroutine(value := receive()) else value
        return result

    async def send(message: Message) -> None:
        sent.append(message)

    async def main() -> None:
        layer = BodyLimit(app, limits=Limits(**{"max_body_bytes": LIMIT} | limits))
        await layer({"type": "http", "path": "/", "headers": headers, "state": {}}, receive_one, send)

    asyncio.run(main())
    return sent


def test_a_body_that_stops_coming_is_408() -> None:
    sent = run_layer(lambda: asyncio.sleep(60), headers=[], body_timeout=0.01)
    assert (sent[0]["status"], len(sent)) == (408, 2)


def test_a_body_that_trickles_is_408_although_something_always_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte in less than body_timeout is not enough: a thousand connections would be held so for hours."""
    now = 0.0
    parts = 0

    def part() -> Message:
        nonlocal now, parts
        parts += 1
        now += 20.0
        return {"type": "http.request", "body": b"x", "more_body": True}

    monkeypatch.setattr("vtk.server.limits.time", type("time", (), {"monotonic": staticmethod(lambda: now)}))
    # With no patience left, waiting for what has already come would still succeed.
    monkeypatch.setattr("vtk.server.limits.asyncio.wait_for", wait_unless_late)
    sent = run_layer(part, headers=[], body_timeout=30.0)
    assert (sent[0]["status"], parts) == (408, 2)


async def wait_unless_late(awaitable: Any, timeout: float) -> Any:
    if timeout <= 0:
        awaitable.close()
        raise asyncio.TimeoutError
    return await awaitable


def test_a_large_body_at_an_honest_pace_may_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    left = 9

    def part() -> Message:
        nonlocal now, left
        now, left = now + 25.0, left - 1
        return {"type": "http.request", "body": b"x" * 30 * MIN_BODY_RATE, "more_body": left > 0}

    monkeypatch.setattr("vtk.server.limits.time", type("time", (), {"monotonic": staticmethod(lambda: now)}))
    monkeypatch.setattr("vtk.server.limits.asyncio.wait_for", wait_unless_late)
    assert run_layer(part, headers=[], body_timeout=30.0, max_body_bytes=1 << 30)[0]["status"] == 200


def test_after_the_body_nothing_is_hurried(serve: Callable[..., int], connect: Callable[[int], socket.socket]) -> None:
    """Waiting for the client to leave is no body that stopped coming."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        watcher = asyncio.ensure_future(receive())
        await asyncio.wait({watcher}, timeout=0.05)
        await send({"type": "http.response.start", "status": 500 if watcher.done() else 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        watcher.cancel()

    connection = connect(serve(BodyLimit(app, limits=Limits(body_timeout=0.01))))
    connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi")
    assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_a_draining_server_takes_nothing_new_and_still_says_how_it_is(make_client: Client, bare: Any) -> None:
    client = make_client(echo)
    bare.is_draining, bare.is_ready = True, False
    answer = client.post("/length", content=b"x")
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["connection"]) == (503, "1", "close")
    assert client.get("/health/ready").status_code == 503
    assert client.get("/health/ready").json() == {"status": "draining"}
    assert client.get("/health/live").status_code == 200
    assert client.get("/v2/health/ready").status_code == 503


def test_a_body_of_two_lengths_is_refused_and_nothing_after_it_is_read(
    make_app: Callable[..., FastAPI], serve: Callable[..., int], connect: Callable[[int], socket.socket]
) -> None:
    """A proxy that went by the other length would take the rest for somebody else's request."""
    connection = connect(serve(make_app()))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    )
    answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"invalid_http" in answer
