"""The page under `/console/`, and what it needs beyond the public routes: colors of dense features."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from vtk.errors import UsageError
from vtk.postprocess.results import Embeddings, FloatArray, Result
from vtk.preprocess.decode import DecodeOptions
from vtk.server.console.feature_colors import feature_colors, png_of
from vtk.server.console.pages import read_pages
from vtk.server.context import ServerContext
from vtk.server.disconnect import unless_left
from vtk.server.pictures import PictureReader, PictureSource
from vtk.server.vision.body import Asked, read_body
from vtk.server.vision.choose import lease_model
from vtk.server.vision.describe import request_body
from vtk.server.vision.options import VisionOptions
from vtk.serving.batcher import Ticket
from vtk.serving.vision_model import VisionModel


def router(context: ServerContext) -> APIRouter:
    """`/` and `/console/…`, which need no key, and `/console/api/pca`, which does where the server has one."""
    routes = APIRouter(tags=["console"])
    _add_pages(routes)
    _add_colors(routes, context)
    return routes


def _add_pages(routes: APIRouter) -> None:
    pages = read_pages()

    @routes.get("/", include_in_schema=False)
    @routes.get("/console", include_in_schema=False)
    async def home() -> RedirectResponse:
        return RedirectResponse("/console/")

    @routes.get("/console/", include_in_schema=False)
    @routes.get("/console/{name}", include_in_schema=False)
    async def page(name: str = "index.html", if_none_match: Annotated[str | None, Header()] = None) -> Response:
        if name not in pages:
            raise HTTPException(404)
        return pages[name].response(if_none_match)


def _add_colors(routes: APIRouter, context: ServerContext) -> None:
    reader = PictureReader(context.settings)
    decode_options = DecodeOptions(max_pixels=context.settings.limits.max_pixels)

    @routes.post(
        "/console/api/pca",
        response_class=Response,
        responses={200: {"content": {"image/png": {}}}, 400: {"description": "The model has no patch features."}},
        openapi_extra={"requestBody": request_body(VisionOptions)},
    )
    async def pca(request: Request) -> Response:
        """Patch features of pictures as a PNG, one pixel a patch, the pictures below each other in their order.

        Red, green and blue are the first three principal components over all pictures of the request.
        """
        asked = await read_body(request, VisionOptions, max_pictures=context.settings.limits.max_pictures)
        with lease_model(context.runtime, asked.options.model, "embed") as model:
            grids = await unless_left(request, _patches(model, asked, reader, decode_options))
        return Response(await asyncio.to_thread(_drawn, grids), media_type="image/png")


async def _patches(
    model: VisionModel, asked: Asked[VisionOptions], reader: PictureReader, decode_options: DecodeOptions
) -> list[FloatArray]:
    """The grid (h, w, D) of every picture. Raises the error of the first that has one."""
    timeout, budget = asked.options.timeout_ms, reader.budget()
    deadline = None if timeout is None else time.monotonic() + timeout / 1000
    ticket = Ticket(asked.options.priority, deadline)

    async def one(source: PictureSource) -> FloatArray:
        picture = await reader.read(source, budget, deadline=deadline)
        answer = await model.answer(picture, decode_options=decode_options, ticket=ticket)
        return _grid(answer.result, model.name)

    answers = await asyncio.gather(*map(one, asked.sources), return_exceptions=True)
    return [_unless_failed(answer) for answer in answers]


def _grid(result: Result, model: str) -> FloatArray:
    if isinstance(result, Embeddings) and result.patches is not None:
        return result.patches
    raise UsageError(
        f"The model '{model}' gives one vector per picture and no patch features.",
        hint="Vision transformers have them, such as DINOv2 and DINOv3.",
    )


def _unless_failed(answer: FloatArray | BaseException) -> FloatArray:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _drawn(grids: Sequence[FloatArray]) -> bytes:
    return png_of(feature_colors(grids))
