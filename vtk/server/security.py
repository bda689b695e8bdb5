"""Who may call: API keys, and the names under which web pages may reach a server on this machine."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from vtk.errors import AccessError
from vtk.server.errors import RefusedError, error_response
from vtk.server.layers import Layer
from vtk.server.settings import ServerSettings

# Probes have no keys, and the console's page asks for one.
_OPEN_PATHS = frozenset(
    {"/", "/console", "/health", "/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"}
)
_OPEN_FOLDER = "/console/"
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def check_key(settings: ServerSettings, header: str | None) -> None:
    """Raise AccessError unless `header` (the value of Authorization) is `Bearer KEY` with a key of the server.

    Digests of one length are compared, with every key and to their ends: the time tells nothing about a key.
    """
    if not settings.api_keys:
        return
    scheme, _, given = (header or "").partition(" ")
    matches = [hmac.compare_digest(_digest(given.strip()), _digest(key)) for key in settings.api_keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise AccessError("This server needs an API key.", hint="Send the header 'Authorization: Bearer KEY'.")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on `host`, or the name in a URL means this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class ApiKeys(Layer):
    """Lets requests without a key of the server reach the probes and the console's page only."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(app)
        self._settings = settings

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if not (scope["method"] in _SAFE_METHODS and _is_open(scope["path"])):
            try:
                check_key(self._settings, Headers(scope=scope).get("authorization"))
            except AccessError as error:
                app = error_response(error, scope)
        await app(scope, receive, send)


class Origins(Layer):
    """Keeps web pages of others out, whose scripts run in a browser on this machine.

    A server on this machine answers only requests for it by its own name, so that a page whose name was made to
    resolve to 127.0.0.1 gets nothing. Requests with effects come from no page but the server's own and `cors_origins`.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        super().__init__(app)
        self._settings = settings
        self._local = is_loopback(settings.host)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refused = self._refuse_host(headers.get("host")) or self._refuse_origin(scope["method"], headers)
        app = self.app if refused is None else error_response(refused, scope)
        await app(scope, receive, send)

    def _refuse_host(self, host: str | None) -> RefusedError | None:
        name = _host_name(host or "")
        if not self._local or host is None or is_loopback(name) or name == self._settings.host:
            return None
        return RefusedError(
            403,
            "host_not_allowed",
            "This server is for this machine only and is not reached by that Host.",
            hint="Use http://127.0.0.1, or start it with --host for other machines.",
        )

    def _refuse_origin(self, method: str, headers: Headers) -> RefusedError | None:
        origin = headers.get("origin")
        if method in _SAFE_METHODS or origin is None or origin in self._settings.cors_origins:
            return None
        if origin.partition("://")[2] == headers.get("host"):
            return None
        return RefusedError(
            403, "origin_not_allowed", "Web pages of that origin may not call this server.", hint="See --cors-origin."
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_open(path: str) -> bool:
    return path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)


def _host_name(host: str) -> str:
    """The host without its port: `[::1]:8000` is `[::1]`."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() and not host.endswith("]") else host
