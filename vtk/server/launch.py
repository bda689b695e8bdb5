"""The life of a server: bind, load, say that it is ready, and end as told, with nothing left half answered."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import grpc
import uvicorn

from vtk.errors import UsageError
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.kserve.grpc_server import start_grpc
from vtk.server.protocol import MAX_HEAD_BYTES, protocol_for
from vtk.server.security import is_loopback
from vtk.server.settings import ServerSettings

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEEP_ALIVE_SECONDS = 15
MAX_FILES = 65_536
CUT_SECONDS = 1  # for handlers to let go of what they hold once their connections are gone
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where the server listens. http: a URL; grpc: host and port, None without gRPC."""

    http: str
    grpc: str | None


def serve(context: ServerContext, on_ready: Callable[[Addresses], None]) -> None:
    """Load the runtime's models and serve them until a signal; `on_ready` is called once all are loaded.

    The probes answer while models are loaded. The first SIGINT, SIGTERM or SIGHUP drains: the server is not ready any
    more, new requests get 503, those that run have `drain_timeout`. The second cuts them off. Raises UsageError for an
    address that cannot be used, and the errors of `Runtime.start`. Call it from the main thread.
    """
    check_exposure(context.settings)
    _allow_many_files()
    listener = listen(context.settings.host, context.settings.port)
    service = _Service(context, listener, on_ready)
    asyncio.run(service.run())
    service.leave()


def check_exposure(settings: ServerSettings) -> None:
    """Raise UsageError where other machines could use the server without a key, unless the settings say they may."""
    if is_loopback(settings.host):
        return
    if not settings.api_keys and not settings.allow_unauthenticated:
        raise UsageError(
            f"On {settings.host} anyone who reaches this machine could use the server: it has no API key.",
            hint="Give --api-key FILE, or --allow-unauthenticated if something else keeps strangers out.",
        )
    if not settings.api_keys:
        _log.warning("listening on %s without API keys: whoever reaches this port may use the server", settings.host)
    _log.warning("listening on %s without TLS: put a proxy with TLS in front of it", settings.host)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. UsageError when the address is in use, not this machine's, or not permitted."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # `localhost` has two addresses; clients try 127.0.0.1.
        family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"The host '{host}' cannot be listened on: {error}.") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        raise UsageError(
            f"Port {port} of {host} cannot be listened on: {error.strerror}.",
            hint="Choose another with --port; 0 takes a free one.",
        ) from error
    return listener


class _Server(uvicorn.Server):
    """uvicorn, whose own idea of signals would end the process with one."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def cut(self) -> None:
        """End every connection now; their handlers see that the client has left."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class _Service:
    def __init__(self, context: ServerContext, listener: socket.socket, on_ready: Callable[[Addresses], None]) -> None:
        self._context = context
        self._listener = listener
        self._on_ready = on_ready
        self._server = _Server(_uvicorn_config(context))
        self._stop = asyncio.Event()
        self._cut = asyncio.Event()
        self._threads: list[threading.Thread] = []

    async def run(self) -> None:
        with self._signals():
            serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
            try:
                await self._serve()
            finally:
                self._server.should_exit = True
                await serving
                await _until(self._in_thread(self._context.runtime.close), self._cut)

    def leave(self) -> None:
        """End the process here if one of its threads still works: a library in it would abort at a usual end."""
        if any(thread.is_alive() for thread in self._threads):
            logging.shutdown()
            if sys.stdout is not None:
                sys.stdout.flush()
            os._exit(0)

    async def _serve(self) -> None:
        rpc, grpc_address = await self._start_grpc()
        try:
            if await self._load():
                self._on_ready(Addresses(_url(self._listener), grpc_address))
                await self._stop.wait()
            left = await self._drain()
        except BaseException:
            left = 0.0
            raise
        finally:
            if rpc is not None:
                await rpc.stop(left)

    async def _start_grpc(self) -> tuple[grpc.aio.Server | None, str | None]:
        settings = self._context.settings
        if settings.grpc_port is None:
            return None, None
        server, port = await start_grpc(self._context)
        return server, f"{settings.host}:{port}"

    async def _load(self) -> bool:
        """Whether all models are loaded before a signal came: loading cannot be stopped, but need not be waited for."""
        started = time.monotonic()
        is_loaded = await _until(self._in_thread(self._context.runtime.start), self._stop)
        if is_loaded:
            _log.info("ready after %.1f s", time.monotonic() - started)
        return is_loaded

    async def _drain(self) -> float:
        """Let what runs end, or cut it off; the seconds of `drain_timeout` left for the answers to be taken."""
        limit = self._context.settings.limits.drain_timeout
        deadline = time.monotonic() + limit
        _log.info("draining for up to %g s", limit)
        await _until(self._in_thread(lambda: self._context.runtime.drain(limit)), self._cut)
        left = 0.0 if self._cut.is_set() else max(0.0, deadline - time.monotonic())
        if left == 0:
            self._server.cut()
        self._server.config.timeout_graceful_shutdown = max(CUT_SECONDS, math.ceil(left))
        return left

    def _in_thread(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """The result of a thread that the process does not wait for at its end, unlike those of asyncio's own pool."""
        result: Future[T] = Future()
        result.set_running_or_notify_cancel()

        def work() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()
        return asyncio.wrap_future(result)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._cut.set()
            self._server.cut()
        self._stop.set()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ignored ones (nohup) stay ignored."""
        loop = asyncio.get_running_loop()
        taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in taken:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in taken:
                loop.remove_signal_handler(number)


def _uvicorn_config(context: ServerContext) -> uvicorn.Config:
    """h11 and asyncio, whatever else is installed: the guards of `protocol` read their states."""
    return uvicorn.Config(
        create_app(context),
        http=protocol_for(context.settings.limits),
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )


async def _until(work: asyncio.Future[T], event: asyncio.Event) -> bool:
    """Wait for either; whether it was `work` that ended, whose error is raised."""
    waiter = asyncio.ensure_future(event.wait())
    await asyncio.wait((work, waiter), return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if work.done():
        work.result()
        return True
    work.cancel()
    return False


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _allow_many_files() -> None:
    """A connection is a file; the soft limit of many systems is 1,024, no more than `max_connections`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
