"""What the server measures (`/metrics`), and why prompts miss the prefix cache (`/debug/prefix`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

from fastapi import APIRouter, Header, Response

from vtk.server.context import ServerContext
from vtk.server.metrics import CONTENT_TYPE
from vtk.server.prefix_doctor import PrefixDoctor, PrefixReport

LOOK_EVERY = 30.0  # seconds
_log = logging.getLogger(__name__)


def router(context: ServerContext) -> APIRouter:
    """`/metrics` always; `/debug/…`, which shows parts of prompts, unless the settings switch it off."""
    doctor = PrefixDoctor(context.runtime)

    @asynccontextmanager
    async def watch(_: object) -> AsyncIterator[None]:
        task = asyncio.create_task(_warn_now_and_then(doctor))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    routes = APIRouter(tags=["debug"], lifespan=watch)
    context.metrics.watch(context.runtime)

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Everything that the server measures, in Prometheus' text format."""
        return Response(context.metrics.render(), media_type=CONTENT_TYPE)

    if context.settings.debug_routes:

        @routes.get("/debug/prefix")
        def prefix(x_cache_salt: Annotated[str | None, Header()] = None) -> list[PrefixReport]:
            """For each language model: where recent prompts leave one another, and what to do about it.

            Prompts that were sent with a `cache_salt` are shown only to who sends that salt in the header X-Cache-Salt.
            """
            return doctor.reports(x_cache_salt)

    return routes


async def _warn_now_and_then(doctor: PrefixDoctor) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY)
        try:
            await asyncio.to_thread(doctor.warn)
        except Exception:
            _log.exception("looking at the prefix cache failed")
