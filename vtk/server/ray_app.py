"""`vtk serve --ray`: replicas of the same application on Ray Serve, behind a front that gives each prompt to its own.

Limits of one process hold in each replica: queues, memory, connections. What belongs to one process is off: gRPC, model
control and the traffic profile; `/metrics` and `/debug` say so. The connections are Ray's, and so are their time-outs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, RequestRouterConfig
from ray.serve.request_router import RequestRouter
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from vtk.errors import BackendError, UnavailableError, UsageError
from vtk.runtime import Runtime
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.disconnect import cancel, unless_left
from vtk.server.errors import RefusedError, error_response
from vtk.server.launch import SIGNALS, check_exposure
from vtk.server.limits import BodyLimit
from vtk.server.logs import configure_logs
from vtk.server.metrics import Metrics
from vtk.server.prefix_routing import choose_order, prefix_key
from vtk.server.security import ApiKeys
from vtk.server.settings import ServerSettings
from vtk.serving.settings import RuntimeSettings

LOCAL = "local"
APP, REPLICAS = "vtk", "Replica"
_MAX_AHEAD = 16  # parts of an answer that wait for the front
_OF_ONE_PROCESS = ("/metrics", "/debug")
# Of the scope, what the protocol fixes: frameworks add objects that cannot travel.
_SENT = frozenset(
    ["type", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers", "client", "server"]
)


@dataclass(frozen=True)
class RaySettings:
    """address: of a running cluster (`auto`: the one on this machine); `local` starts one that ends with the server."""

    address: str = LOCAL
    replicas: int = 2

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise UsageError(f"--replicas must be 1 or more, got {self.replicas}.")


class PrefixRouter(RequestRouter):  # type: ignore[misc]
    """Ray's place for choosing a replica; counts what this front has given to each."""

    def initialize_state(self) -> None:
        self._running: Counter[str] = Counter()

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        """One replica a rank."""
        key = None if pending_request is None else pending_request.kwargs.get("key")
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        order = choose_order(key, {name: self._running[name] for name in replicas})
        return [[replicas[name]] for name in order]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        self._running[replica_id.unique_id] += 1

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        self._running[replica_id.unique_id] -= 1


class Replica:
    """The application over a runtime of its own."""

    async def __init__(self, runtime: RuntimeSettings, settings: ServerSettings) -> None:  # type: ignore[misc]  # Ray awaits
        configure_logs(sys.stderr)
        self._runtime = Runtime(runtime)
        await asyncio.to_thread(self._runtime.start)
        self._app = create_app(ServerContext(self._runtime, settings, Metrics()))
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()

    async def answer(self, scope: dict[str, Any], body: bytes, *, key: bytes | None) -> AsyncIterator[Message]:
        """The messages of one answer. `key` is for the router. Canceling it is a client that leaves."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue(_MAX_AHEAD)
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Message:
            for message in given:
                return message
            await asyncio.Event().wait()
            raise AssertionError("nothing ends this wait but its cancellation")

        async def work() -> None:
            try:
                await self._app({**scope, "asgi": {"version": "3.0"}, "root_path": ""}, receive, messages.put)
            finally:
                await messages.put(None)

        task = asyncio.ensure_future(work())
        try:
            while (message := await messages.get()) is not None:
                yield message
        finally:
            await cancel(task)

    def check_health(self) -> None:
        """Ray replaces a replica for which this raises."""
        if not self._runtime.is_ready:
            raise UnavailableError("The runtime is not ready.")

    async def __del__(self) -> None:
        await self._lifespan.__aexit__(None, None, None)
        await asyncio.to_thread(self._runtime.close)


class Forward:
    """Hands a request to the replica for its prompt, and the answer back part by part."""

    def __init__(self, replicas: Any) -> None:
        self._replicas = replicas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(_OF_ONE_PROCESS):
            refused = RefusedError(501, "not_offered", "With --ray this would tell of one replica of several.")
            await error_response(refused, scope)(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        key = await asyncio.to_thread(prefix_key, scope["path"], body)
        parts = self._replicas.answer.remote(
            {name: value for name, value in scope.items() if name in _SENT}, body, key=key
        )
        try:
            await unless_left(request, _pass_on(parts, scope, receive, send))
        except ClientDisconnect:
            parts.cancel()


async def _pass_on(parts: AsyncIterator[Message], scope: Scope, receive: Receive, send: Send) -> None:
    is_started = False
    try:
        async for message in parts:
            await send(message)
            is_started = True
    except RayError:
        if is_started:
            raise  # the connection is closed before the end of the answer
        failure = UnavailableError("The replica that had the request is gone.", hint="Send it again.")
        await error_response(failure, scope)(scope, receive, send)


def front(settings: ServerSettings) -> Callable[[], Starlette]:
    """What makes the application of the front, where Ray wants it."""

    def build() -> Starlette:
        replicas = serve.get_deployment_handle(REPLICAS, app_name=APP).options(stream=True)
        layers = [Middleware(ApiKeys, settings=settings), Middleware(BodyLimit, limits=settings.limits)]
        return Starlette(routes=[Route("/{path:path}", Forward(replicas))], middleware=layers)

    return build


def application(runtime: RuntimeSettings, settings: ServerSettings, replicas: int, options: Mapping[str, Any]) -> Any:
    """For `serve.run`. options: of the actor of each replica, such as num_gpus."""
    settings = replace(settings, allow_model_control=False, grpc_port=None)
    many = settings.limits.max_connections
    models = serve.deployment(
        Replica,
        name=REPLICAS,
        num_replicas=replicas,
        max_ongoing_requests=many,
        ray_actor_options=dict(options),
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
    )

    class Front:
        def __init__(self, replicas: Any) -> None:
            """Ray starts the replicas that are named here first."""

    ingress = serve.deployment(
        serve.ingress(front(settings))(Front),
        name="Front",
        max_ongoing_requests=many,
        ray_actor_options={"num_cpus": 0},  # it waits more than it works, and the replicas may have taken all
    )
    return ingress.bind(models.bind(replace(runtime, traffic_profile=None), settings))


def serve_on_ray(
    runtime: RuntimeSettings, settings: ServerSettings, where: RaySettings, on_ready: Callable[[str], None]
) -> None:
    """Serve until a signal. Raises UsageError for an exposed address, BackendError when Ray or a replica fails."""
    check_exposure(settings)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    is_local = where.address == LOCAL
    stop = threading.Event()
    try:
        ray.init(LOCAL if is_local else where.address, include_dashboard=False if is_local else None)
        has_gpus = ray.cluster_resources().get("GPU", 0) >= where.replicas
        serve.start(http_options=HTTPOptions(host=settings.host, port=settings.port))
        app = application(runtime, settings, where.replicas, {"num_gpus": int(has_gpus)})
        serve.run(app, name=APP, route_prefix="/")
    except (RayError, RuntimeError, ConnectionError) as error:
        ray.shutdown()
        raise BackendError(f"Ray could not start the server: {error}.") from error
    try:
        for number in SIGNALS:
            signal.signal(number, lambda *_: stop.set())
        on_ready(f"http://{settings.host}:{settings.port}")
        stop.wait()
    finally:
        serve.delete(APP)
        if is_local:
            serve.shutdown()
        ray.shutdown()
