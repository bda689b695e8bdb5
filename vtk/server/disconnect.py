"""No work for a client that has left: a server does not cancel a handler by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

T = TypeVar("T")


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is canceled as soon as the client leaves; then raises ClientDisconnect.

    The request's body must have been read.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await cancel(task, watcher)


async def left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until they have let go of everything."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
