"""How a route of this protocol answers: errors in OpenAI's shape, and no work for a client that has left."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from vtk.errors import RequestError, VtkError
from vtk.server.errors import error_response
from vtk.server.openai.errors import from_validation, param_of

T = TypeVar("T")
CLIENT_LEFT = 499  # nginx's status for a client that left; nobody reads it but the log
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class ClientLeft(Exception):
    """The client closed its connection before it had the answer."""


class OpenAIRoute(APIRoute):
    """A route whose expected failures are answered in OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with its failures caught."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                _check_text(await request.body())
                return await handle(request)
            except RequestValidationError as error:
                failure: VtkError = from_validation(error)
            except HTTPException as error:
                if error.status_code != 400:
                    raise
                failure = RequestError("invalid_request", "The body cannot be read as JSON in UTF-8.")
            except VtkError as error:
                failure = error
            except ClientLeft:
                return Response(status_code=CLIENT_LEFT)
            return error_response(failure, request.scope, param=param_of(failure))

        return answer


def _check_text(body: bytes) -> None:
    """Refuse half surrogate pairs, which JSON can write and no text holds: every later encoder would fail on them."""
    if _SURROGATE.search(body) is None:
        return
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RequestError("invalid_request", "The body holds half a surrogate pair; send valid UTF-8.") from error
    except (ValueError, RecursionError):
        return  # refused when it is parsed


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is canceled as soon as the client leaves; then raises ClientLeft.

    The request's body must have been read. A server does not cancel a handler by itself.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(left(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientLeft
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
