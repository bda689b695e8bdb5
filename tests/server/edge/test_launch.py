"""The life of a server process: its address, its signals, its end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from vtk.errors import UsageError
from vtk.server.launch import check_exposure, listen
from vtk.server.settings import ServerSettings

# Its one request runs until the file `release` is there, and its models load until `loaded` is.
SCRIPT = """
import asyncio, atexit, os, pathlib, sys, threading, time
from types import SimpleNamespace
import vtk.server.launch as launch
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.logs import configure_logs
from vtk.server.metrics import Metrics
from vtk.server.settings import Limits, ServerSettings

folder, drain_timeout, grpc_port = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

class Runtime:
    is_ready = is_draining = False

    def __init__(self):
        self.idle = threading.Event()
        self.idle.set()
        self.in_a_library = False
        atexit.register(lambda: self.in_a_library and os.abort())

    def start(self):
        self.in_a_library = True
        while not (folder / "loaded").exists():
            time.sleep(0.01)
        self.in_a_library = False
        self.is_ready = True

    def statuses(self):
        return []

    def drain(self, timeout):
        self.is_draining, self.is_ready = True, False
        print("draining", flush=True)
        return self.idle.wait(timeout)

    def close(self):
        print("closed", flush=True)

runtime = Runtime()

def create(context):
    app = create_app(context)

    @app.post("/slow")
    async def slow():
        runtime.idle.clear()
        print("running", flush=True)
        try:
            while not (folder / "release").exists():
                await asyncio.sleep(0.01)
        finally:
            runtime.idle.set()
        return "done"

    return app

launch.create_app = create
configure_logs(sys.stderr)
settings = ServerSettings(
    port=0, grpc_port=int(grpc_port) if grpc_port else None, limits=Limits(drain_timeout=drain_timeout)
)
print("starting", flush=True)
launch.serve(
    ServerContext(runtime, settings, Metrics()), lambda addresses: print(addresses.http, addresses.grpc, flush=True)
)
"""


class Server:
    """One such process; `said` waits for a line of it."""

    def __init__(self, folder: Path, *, drain_timeout: float = 60.0, grpc_port: str = "", loaded: bool = True) -> None:
        self.folder = folder
        if loaded:
            (folder / "loaded").touch()
        words = [sys.executable, "-c", SCRIPT, str(folder), str(drain_timeout), grpc_port]
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
        self.said("starting")
        if loaded:
            self.url, self.grpc = self.said("http").split()

    def said(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        pytest.fail(f"it ended without saying {start}: {self.log.read_text()}")

    def ended(self) -> int:
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(**options: object) -> Server:
        servers.append(Server(tmp_path, **options))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def test_a_signal_lets_what_runs_end_and_takes_nothing_new(
    start: Callable[..., Server], pool: ThreadPoolExecutor
) -> None:
    server = start(grpc_port="0")
    assert server.grpc.startswith("127.0.0.1:")
    running = pool.submit(httpx.post, f"{server.url}/slow", timeout=60)
    server.said("running")
    server.process.send_signal(signal.SIGTERM)
    server.said("draining")
    ready = httpx.get(f"{server.url}/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert httpx.get(f"{server.url}/health/live").status_code == 200
    refused = httpx.post(f"{server.url}/slow")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert server.process.poll() is None
    (server.folder / "release").touch()
    assert (running.result().status_code, running.result().json()) == (200, "done")
    server.said("closed")
    assert server.ended() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("how", ["second signal", "timeout"])
def test_what_does_not_end_is_cut_off(start: Callable[..., Server], pool: ThreadPoolExecutor, how: str) -> None:
    server = start(drain_timeout=600.0 if how == "second signal" else 0.1)
    running = pool.submit(httpx.post, f"{server.url}/slow", timeout=60)
    server.said("running")
    server.process.send_signal(signal.SIGINT)
    server.said("draining")
    if how == "second signal":
        server.process.send_signal(signal.SIGTERM)
    with pytest.raises(httpx.TransportError):
        running.result()
    assert server.ended() == 0


def test_it_lives_while_it_loads_and_can_be_ended_then(start: Callable[..., Server]) -> None:
    """Though what opens a model neither stops nor outlives the process: ONNX Runtime then aborts it."""
    server = start(loaded=False)
    port = only_port(server.process.pid)
    assert httpx.get(f"http://127.0.0.1:{port}/health/live").status_code == 200
    assert httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 503
    server.process.send_signal(signal.SIGTERM)
    assert server.ended() == 0


def only_port(pid: int) -> int:
    """The port that a process listens on, as soon as it does."""
    while True:
        sockets = {str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].rpartition(":")[2], 16)


def test_a_port_in_use_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} of 127.0.0.1 cannot be listened on: Address already in use"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "x" * 300])
def test_a_host_that_is_not_this_machine_is_too(host: str) -> None:
    with pytest.raises(UsageError, match="cannot be listened on"):
        listen(host, 0)


def test_localhost_is_where_clients_look_first() -> None:
    with listen("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_strangers_need_a_key(host: str) -> None:
    with pytest.raises(UsageError, match="has no API key"):
        check_exposure(ServerSettings(host=host))
    check_exposure(ServerSettings(host=host, api_keys=("k",)))
    check_exposure(ServerSettings(host=host, allow_unauthenticated=True))


def test_and_an_open_server_is_told_loudly(caplog: pytest.LogCaptureFixture) -> None:
    check_exposure(ServerSettings(host="0.0.0.0", allow_unauthenticated=True))
    assert "without API keys" in caplog.text
    caplog.clear()
    check_exposure(ServerSettings(host="localhost"))
    assert caplog.text == ""
