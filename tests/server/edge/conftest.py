"""The application and the protocol over a runtime that has no models."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from vtk.errors import NotFoundError
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.protocol import MAX_HEAD_BYTES, GuardedProtocol, protocol_for
from vtk.server.settings import Limits, ServerSettings
from vtk.serving.model_table import ModelStatus

PATIENCE = 20  # seconds until a test gives up; what it waits for comes at once or never


class BareRuntime:
    """What the server's edge asks of a runtime."""

    def __init__(self, *models: ModelStatus) -> None:
        self.models = list(models)
        self.is_ready = True
        self.is_draining = False

    def statuses(self) -> list[ModelStatus]:
        return self.models

    def language(self, name: str) -> NoReturn:
        raise NotFoundError(f"No language model named '{name}' is served.")


@pytest.fixture
def bare() -> BareRuntime:
    return BareRuntime()


@pytest.fixture
def make_app(bare: BareRuntime) -> Callable[..., FastAPI]:
    """The application with these settings."""

    def make(**settings: Any) -> FastAPI:
        return create_app(ServerContext(bare, ServerSettings(**settings), Metrics()))  # type: ignore[arg-type]

    return make


@pytest.fixture
def make_client(make_app: Callable[..., FastAPI]) -> Callable[..., TestClient]:
    """A client of the application with these settings; `routes(app)` adds some."""

    def make(routes: Callable[[FastAPI], None] = lambda app: None, **settings: Any) -> TestClient:
        app = make_app(**settings)
        routes(app)
        return TestClient(app, base_url="http://127.0.0.1:8000")

    return make


@contextmanager
def running(app: ASGIApp, protocol: type[GuardedProtocol]) -> Iterator[int]:
    """The port of a thread that serves `app` over this protocol."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=protocol, loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, h11_max_incomplete_event_size=MAX_HEAD_BYTES, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Serves an application with these limits, on a port of its own, until the test ends."""
    with ExitStack() as stack:

        def start(app: ASGIApp, protocol: type[GuardedProtocol] | None = None, **limits: Any) -> int:
            return stack.enter_context(running(app, protocol or protocol_for(Limits(**limits))))

        yield start


@pytest.fixture
def connect() -> Iterator[Callable[[int], socket.socket]]:
    """Opens connections that are closed with the test and wait no longer than it is patient."""
    with ExitStack() as stack:
        yield lambda port: stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
