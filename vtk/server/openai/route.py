"""How a route of this protocol answers: errors in OpenAI's shape."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from vtk.errors import RequestError, VtkError
from vtk.server.errors import error_response
from vtk.server.json_values import check_values
from vtk.server.openai.errors import from_validation, param_of

MAX_VALUES = 1 << 20  # of one body: a prompt of a million token ids
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class OpenAIRoute(APIRoute):
    """A route whose expected failures are answered in OpenAI's shape."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with its failures caught."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                body = await request.body()
                check_values(body, MAX_VALUES)
                _check_text(body)
                return await handle(request)
            except RequestValidationError as error:
                failure: VtkError = from_validation(error)
            except HTTPException as error:
                if error.status_code != 400:
                    raise
                failure = RequestError("invalid_request", "The body cannot be read as JSON in UTF-8.")
            except VtkError as error:
                failure = error
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
