"""Case L35: a client that leaves frees its work within one step, wherever it stands."""

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

Until = Callable[[Callable[[], Any]], None]
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")


def send(served: Any, path: str, text: str = "hello", **options: Any) -> socket.socket:
    """A request on a connection of its own; closing it is leaving."""
    body: dict[str, Any] = {"model": "tiny-llama", **options}
    if path == "/v1/chat/completions":
        body["messages"] = [{"role": "user", "content": text}]
    else:
        body["input" if "embed" in path else "prompt"] = text
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def free_blocks(served: Any) -> bool:
    pool = served.engine.scheduler.pool
    return bool(pool.num_free == pool.num_blocks)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS[:2])
def test_while_it_decodes(serve_with: Callable[..., Any], until: Until, path: str, stream: bool) -> None:
    running = serve_with()
    served, gate = running.served, running.gate
    gate.allow(3)
    connection = send(served, path, stream=stream, max_tokens=1000, ignore_eos=True)
    gate.wait_at_gate()
    if stream:
        assert b"200 OK" in connection.recv(4096)
    connection.close()
    until(lambda: served.runtime.num_leases == 0)  # the handler has ended while the engine stands still
    steps = gate.num_steps
    gate.allow(1)  # the step that it stands before, and no other
    until(lambda: served.num_open == 0 and free_blocks(served))
    assert gate.num_steps == steps + 1
    assert gate.num_waiting == 0


@pytest.mark.parametrize("path", PATHS)
def test_while_it_is_queued(serve_with: Callable[..., Any], until: Until, path: str) -> None:
    running = serve_with(max_num_seqs=1)
    served, gate = running.served, running.gate
    gate.allow(2)
    first = send(served, "/v1/completions", max_tokens=8, ignore_eos=True)
    gate.wait_at_gate()
    queued = send(served, path, "another", **({} if "embed" in path else {"max_tokens": 500, "ignore_eos": True}))
    until(lambda: served.model.loop.num_live + served.model.num_open >= 3)
    queued.close()
    until(lambda: served.runtime.num_leases == 1)
    gate.allow(float("inf"))
    assert b"200 OK" in first.recv(4096)
    first.close()
    until(lambda: served.num_open == 0 and free_blocks(served))
    assert gate.num_steps < 20  # nothing of the second was computed


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [True, False])
def test_during_chunked_prefill(serve_with: Callable[..., Any], until: Until, path: str, stream: bool) -> None:
    running = serve_with(max_num_seqs=8, max_num_batched_tokens=16)
    served, gate = running.served, running.gate
    gate.allow(3)
    options = {} if "embed" in path else {"stream": stream, "max_tokens": 5}
    connection = send(served, path, "x" * 1600, **options)  # a hundred chunks
    gate.wait_at_gate()
    connection.close()
    until(lambda: served.runtime.num_leases == 0)
    gate.allow(float("inf"))
    until(lambda: served.num_open == 0 and free_blocks(served))
    assert gate.num_steps <= 5


def test_a_slow_reader_does_not_hold_the_engine_up(serve_with: Callable[..., Any], until: Until) -> None:
    """It reads nothing: the engine finishes its output, and others are served meanwhile."""
    running = serve_with(num_gpu_blocks_override=140)
    served = running.served
    slow = send(
        served,
        "/v1/chat/completions",
        stream=True,
        max_tokens=1500,
        n=1,
        logprobs=True,
        top_logprobs=20,
        ignore_eos=True,
    )
    until(lambda: running.gate.num_steps > 100)
    assert served.complete(max_tokens=4).usage.completion_tokens == 4
    until(lambda: served.model.loop.num_live == 0)
    slow.close()
    until(lambda: served.num_open == 0)


def test_registries_are_empty_after_many_requests(served: Any, until: Until) -> None:
    """Case L36."""
    for _ in range(100):
        served.complete(max_tokens=1)
    until(lambda: served.num_open == 0)
    assert free_blocks(served)
