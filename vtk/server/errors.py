"""From an exception to a status code, for every protocol that the server speaks."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import Response
from starlette.types import Scope

from vtk.errors import (
    AccessError,
    BackendError,
    DeadlineError,
    ImageError,
    InputError,
    MissingDependencyError,
    NotFoundError,
    OverloadedError,
    RequestError,
    UnavailableError,
    UsageError,
    VtkError,
)

# The first class that an error is an instance of decides; what is not listed is the server's fault.
_STATUS: tuple[tuple[type[VtkError], int], ...] = (
    (AccessError, 401),
    (NotFoundError, 404),
    (OverloadedError, 429),
    (UnavailableError, 503),
    (DeadlineError, 408),  # the client's own; 504 would say that a server behind this one failed
    (RequestError, 400),
    (ImageError, 400),
    (UsageError, 400),
    (InputError, 400),
    (MissingDependencyError, 501),
    (BackendError, 500),
)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
}
_RETRY_SECONDS = 1  # for a server that starts, drains or has no connection left: another replica may be there


class RefusedError(VtkError):
    """A request that is refused for its form, before a route sees it, with the HTTP `status` and the word for it."""

    def __init__(self, status: int, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code


def status_of(error: VtkError) -> int:
    """The HTTP status of an expected failure."""
    if isinstance(error, RefusedError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def code_of(error: VtkError) -> str:
    """A stable word for programs: OpenAI's where it has one, the reason of a picture, else the kind of error."""
    if isinstance(error, (RequestError, RefusedError)):
        return error.code
    if isinstance(error, ImageError):
        return f"image_{error.reason}"
    words = {
        401: "invalid_api_key",
        404: "model_not_found",
        408: "deadline_exceeded",
        429: "rate_limit_exceeded",
        503: "unavailable",
    }
    return words.get(status_of(error), "invalid_request" if status_of(error) == 400 else "server_error")


def openai_body(error: VtkError, *, param: str | None = None) -> dict[str, dict[str, str | None]]:
    """The error in OpenAI's shape."""
    status = status_of(error)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code_of(error)}}


def headers_of(error: VtkError) -> dict[str, str]:
    """Response headers that belong to an error: Retry-After in whole seconds, WWW-Authenticate."""
    if isinstance(error, OverloadedError):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, UnavailableError):
        return {"Retry-After": str(_RETRY_SECONDS)}
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, AccessError) else {}


def error_response(error: VtkError, scope: Scope, *, param: str | None = None) -> Response:
    """The answer to the request of `scope`, in the shape of its protocol: KServe's below /v2, else OpenAI's.

    The code is noted in the request's state, for its line of the log.
    """
    scope.setdefault("state", {})["error_code"] = code_of(error)
    body: dict[str, Any] = {"error": str(error)} if _is_kserve(scope["path"]) else openai_body(error, param=param)
    # Escaped, since a message may quote a client's lone surrogate, which UTF-8 does not have.
    return Response(json.dumps(body), status_of(error), headers_of(error), media_type="application/json")


def _is_kserve(path: str) -> bool:
    return path == "/v2" or path.startswith("/v2/")
