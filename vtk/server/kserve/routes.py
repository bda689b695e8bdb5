"""The protocol over HTTP: the Open Inference Protocol and Triton's extensions of it."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vtk.errors import NotFoundError, UnavailableError
from vtk.server.context import ServerContext
from vtk.server.disconnect import unless_left
from vtk.server.errors import RefusedError
from vtk.server.kserve.control import load_model, unload_model
from vtk.server.kserve.describe import is_model_ready, model_config, model_metadata, repository_index, server_metadata
from vtk.server.kserve.http_codec import HEADER_LENGTH, check_fields, read_object, read_request, take, write_response
from vtk.server.kserve.infer import infer
from vtk.server.kserve.model_statistics import model_statistics
from vtk.server.kserve.openapi import CONTROL_BODY, INDEX_BODY, INFER_BODY


def router(context: ServerContext) -> APIRouter:
    """All routes under `/v2`."""
    routes = APIRouter(prefix="/v2", tags=["kserve"])
    _add_server(routes, context)
    for prefix in ("/models/{model}", "/models/{model}/versions/{version}"):
        _add_model(routes, context, prefix)
    _add_repository(routes, context)
    return routes


def _add_server(routes: APIRouter, context: ServerContext) -> None:
    @routes.get("")
    async def metadata() -> JSONResponse:
        """Name, version and protocol extensions of the server."""
        return JSONResponse(server_metadata())

    @routes.get("/health/live")
    async def live() -> JSONResponse:
        """Answers as long as the process does."""
        return JSONResponse({"live": True})

    @routes.get("/health/ready")
    async def ready() -> JSONResponse:
        """200 when every model that was asked for has been loaded, else 503."""
        is_ready = context.runtime.is_ready
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @routes.get("/models/stats")
    async def statistics() -> JSONResponse:
        """Statistics of every vision model."""
        return JSONResponse(model_statistics(context, "", ""))


def _add_model(routes: APIRouter, context: ServerContext, prefix: str) -> None:
    @routes.get(prefix)
    async def metadata(model: str, version: str = "") -> JSONResponse:
        """Inputs and outputs of a model."""
        return JSONResponse(model_metadata(context, model, version))

    @routes.get(f"{prefix}/config")
    async def config(model: str, version: str = "") -> JSONResponse:
        """The model's batching and tensors in the words of Triton's model configuration."""
        return JSONResponse(model_config(context, model, version))

    @routes.get(f"{prefix}/stats")
    async def statistics(model: str, version: str = "") -> JSONResponse:
        """Rows, batches and the seconds of each stage so far."""
        return JSONResponse(model_statistics(context, model, version))

    @routes.get(f"{prefix}/ready")
    async def ready(model: str, version: str = "") -> JSONResponse:
        """200 when the model answers requests."""
        is_ready = is_model_ready(context, model, version)
        if is_ready is None:
            raise NotFoundError(f"No model '{model}'{version and ' of version '}{version} is served.")
        if not is_ready:
            raise UnavailableError(f"The model '{model}' is not ready.")
        return JSONResponse({"name": model, "ready": True})

    @routes.post(f"{prefix}/infer", openapi_extra=INFER_BODY)
    async def infer_rows(request: Request, model: str, version: str = "") -> Response:
        """Raw outputs for rows of the model's own tensor, or for encoded pictures in the input `image`."""
        if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
            raise RefusedError(415, "unsupported_encoding", f"Send the body as it is, without {encoding:.40}.")
        body = await request.body()
        header_length = request.headers.get(HEADER_LENGTH)
        asked = await asyncio.to_thread(read_request, body, header_length, model=model, version=version)
        answer = await unless_left(request, infer(context, asked))
        content, headers = await asyncio.to_thread(write_response, answer)
        return Response(content, headers=headers)


def _add_repository(routes: APIRouter, context: ServerContext) -> None:
    @routes.post("/repository/index", openapi_extra=INDEX_BODY)
    async def index(request: Request) -> JSONResponse:
        """Every version of every model and its state."""
        body = await _object(request, frozenset({"ready"}))
        return JSONResponse(repository_index(context, ready=take(body, "ready", bool, False)))

    @routes.post("/repository/models/{model}/load", openapi_extra=CONTROL_BODY)
    async def load(request: Request, model: str) -> JSONResponse:
        """Load or reload a model; the old one serves until the new one is ready."""
        body = await _object(request, frozenset({"parameters"}))
        await load_model(context, model, take(body, "parameters", dict, {}))
        return JSONResponse({})

    @routes.post("/repository/models/{model}/unload", openapi_extra=CONTROL_BODY)
    async def unload(request: Request, model: str) -> JSONResponse:
        """Take a model out of service once its requests are answered."""
        body = await _object(request, frozenset({"parameters"}))
        await unload_model(context, model, take(body, "parameters", dict, {}))
        return JSONResponse({})


async def _object(request: Request, fields: frozenset[str]) -> dict[str, Any]:
    body = await asyncio.to_thread(read_object, await request.body())
    check_fields(body, fields, "The request")
    return body
