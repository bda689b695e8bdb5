"""The application: every route, inside the layers that keep it safe and answer its failures."""

from __future__ import annotations

import logging
from http import HTTPStatus
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from vtk.errors import VtkError
from vtk.server import debug, health
from vtk.server.console import routes as console
from vtk.server.context import ServerContext
from vtk.server.errors import RefusedError, error_response
from vtk.server.http_metrics import HttpMetrics
from vtk.server.kserve import routes as kserve
from vtk.server.layers import Layer
from vtk.server.limits import BodyLimit, Draining
from vtk.server.logs import RequestLog, request_id
from vtk.server.openai import routes as openai
from vtk.server.openai.errors import from_validation, param_of
from vtk.server.security import ApiKeys, Origins
from vtk.server.tracing import Tracing, open_tracing
from vtk.server.vision import routes as vision

_log = logging.getLogger(__name__)


def create_app(context: ServerContext) -> FastAPI:
    """All that the server answers over HTTP. Its layers are plain ASGI: streams and disconnects pass through unchanged.

    The interactive pages of FastAPI are off, since they load scripts from elsewhere; `/openapi.json` is there.
    """
    app = FastAPI(title="vtk", version=version("vtk-deploy"), docs_url=None, redoc_url=None)
    for module in (health, debug, openai, kserve, vision):
        app.include_router(module.router(context))
    if context.settings.console:
        app.include_router(console.router(context))
    app.add_exception_handler(VtkError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    _add_layers(app, context)
    return app


def _add_layers(app: FastAPI, context: ServerContext) -> None:
    """The last one added sees a request first."""
    settings = context.settings
    app.add_middleware(Faults)
    app.add_middleware(BodyLimit, limits=settings.limits)
    app.add_middleware(Draining, is_draining=lambda: context.runtime.is_draining)
    app.add_middleware(ApiKeys, settings=settings)
    app.add_middleware(Origins, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(HttpMetrics, metrics=context.metrics)
    if settings.otlp_endpoint is not None:
        app.add_middleware(Tracing, provider=open_tracing(settings.otlp_endpoint))
    app.add_middleware(RequestLog)


class Faults(Layer):
    """Answers an exception that nobody expected with 500 and the request's id; its traceback goes to the log only."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def watch(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self.app(scope, receive, watch)
        except ClientDisconnect:
            return
        except Exception:
            _log.exception("a request failed", extra={"fields": {"request_id": request_id(scope)}})
            # Returning from a begun answer leaves it incomplete, and the protocol closes the connection.
            if not is_started:
                await error_response(_unexpected(scope), scope)(scope, receive, send)


def _unexpected(scope: Scope) -> RefusedError:
    return RefusedError(
        500,
        "internal_error",
        "The server failed unexpectedly.",
        hint=f"Its log says more under the request id {request_id(scope)}.",
    )


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, VtkError)
    return error_response(error, request.scope)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    failure = from_validation(error)
    return error_response(failure, request.scope, param=param_of(failure))


async def _answer_http(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path, another method, a body that cannot be taken apart."""
    assert isinstance(error, HTTPException)
    words = {404: ("not_found", "There is nothing at this path."), 405: ("method_not_allowed", "Not with this method.")}
    code, told = words.get(error.status_code, ("invalid_request", error.detail or HTTPStatus(error.status_code).phrase))
    response = error_response(RefusedError(error.status_code, code, told), request.scope)
    response.headers.update(error.headers or {})
    return response
