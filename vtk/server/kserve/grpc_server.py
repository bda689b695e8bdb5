"""The protocol over gRPC, in the event loop that also serves HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from vtk.errors import AccessError, DeadlineError, UsageError, VtkError
from vtk.server.context import ServerContext
from vtk.server.errors import RefusedError, headers_of, status_of
from vtk.server.kserve.grpc_codec import check_fields
from vtk.server.kserve.grpc_methods import Method, methods
from vtk.server.kserve.messages import MESSAGES, SERVICE
from vtk.server.security import check_key
from vtk.server.settings import ServerSettings

_log = logging.getLogger(__name__)
_Rpc = Any  # grpc.aio.ServicerContext: the library has no types

_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
# Probes have no keys, over HTTP neither.
_OPEN = frozenset({"ServerLive", "ServerReady"})
# Characters, each up to 12 bytes on the wire; with 8 KiB of metadata a client sees that limit instead of the error.
_MAX_DETAILS = 500
_IDLE_MS = 300_000


async def start_grpc(context: ServerContext) -> tuple[grpc.aio.Server, int]:
    """A server that is listening, and its port; `await server.stop(grace)` ends it.

    Raises UsageError when the port cannot be had.
    """
    settings = context.settings
    server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=settings.limits.max_connections)
    handlers = {name: _handler(context, name, method) for name, method in methods(context).items()}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        port = server.add_insecure_port(f"{host}:{settings.grpc_port or 0}")
    except RuntimeError as error:
        address = f"{host}:{settings.grpc_port}"
        raise UsageError(f"gRPC cannot listen on {address}.", hint="Choose another --grpc-port.") from error
    await server.start()
    return server, port


def _options(settings: ServerSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.limits.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.server_handshake_timeout_ms", round(settings.limits.header_timeout * 1000)),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
        ("grpc.so_reuseport", 0),
    ]


def _handler(context: ServerContext, name: str, method: Method) -> grpc.RpcMethodHandler:
    """The method with its key checked and its failures answered.

    On the wire a unary call is a stream of one message; taken as a stream, the key is checked before the message is
    accepted, and a message that never ends has a time limit.
    """

    async def call(_: object, rpc: _Rpc) -> bytes:
        try:
            if name not in _OPEN:
                check_key(context.settings, _authorization(rpc))
            data = await _read(rpc, context.settings.limits.body_timeout)
            message = await asyncio.to_thread(_parse, MESSAGES[f"{name}Request"], data)
            response = await method(message)
            return await asyncio.to_thread(response.SerializeToString)
        except VtkError as error:
            failure = error
        except Exception:
            _log.exception("a gRPC request failed: %s", name)
            failure = RefusedError(500, "internal_error", "The server failed unexpectedly; its log says more.")
        await _abort(rpc, failure)
        raise AssertionError("abort raises")

    return grpc.stream_unary_rpc_method_handler(call)


async def _read(rpc: _Rpc, timeout: float) -> bytes:
    try:
        data = await asyncio.wait_for(rpc.read(), timeout)
    except asyncio.TimeoutError:
        raise DeadlineError(f"The request did not come within {timeout:g} s.") from None
    if not isinstance(data, bytes):
        raise UsageError("The request has no message.")
    return data


def _parse(kind: Any, data: bytes) -> Any:
    check_fields(data)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise UsageError(f"The message is no {kind.DESCRIPTOR.name}: {error}.") from error


def _authorization(rpc: _Rpc) -> str | None:
    values = [value for key, value in rpc.invocation_metadata() or () if key == "authorization"]
    if len(values) > 1:
        raise AccessError("The metadata must have one authorization entry.")
    return values[0] if values else None


async def _abort(rpc: _Rpc, error: VtkError) -> None:
    code = _CODES.get(status_of(error), grpc.StatusCode.INTERNAL)
    metadata = tuple((name.lower(), value) for name, value in headers_of(error).items())
    await rpc.abort(code, str(error)[:_MAX_DETAILS], metadata)
