"""Errors of this protocol: refusals that name the parameter, and what a body that is not understood is told."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastapi.exceptions import RequestValidationError

from vtk.errors import RequestError, VtkError

_NAME = re.compile(r"[a-z_][A-Za-z0-9_]*")
_TYPE_NAMES = {"str", "int", "float", "bool", "dict"}


class ParamError(RequestError):
    """A request that is refused because of one parameter: `param`, as OpenAI writes it ("messages[0].content")."""

    def __init__(self, param: str, message: str, *, code: str = "invalid_value", hint: str | None = None) -> None:
        super().__init__(code, message, hint=hint)
        self.param = param


def param_of(error: VtkError) -> str | None:
    """The parameter that an error is about, where that is known."""
    return error.param if isinstance(error, ParamError) else None


def from_validation(error: RequestValidationError) -> RequestError:
    """The first thing that is wrong with a body, in one line."""
    first = error.errors()[0]
    kind, param = first["type"], _path(first["loc"][1:])
    if kind == "json_invalid":
        return RequestError("invalid_json", f"The body is not valid JSON: {first['ctx']['error']}.")
    if not param:
        return RequestError("invalid_request", "The body must be a JSON object, sent as application/json.")
    if kind == "missing":
        return ParamError(param, f"Missing required parameter: '{param}'.", code="missing_required_parameter")
    if kind == "extra_forbidden":
        return ParamError(param, f"Unrecognized request argument supplied: {param}.", code="unknown_parameter")
    return ParamError(param, f"Invalid value for '{param}': {first['msg']}.")


def _path(location: Sequence[str | int]) -> str:
    """("messages", 0, "content", "str") as messages[0].content, without the names of types that pydantic adds."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]" if path else ""
        elif part in _TYPE_NAMES or not _NAME.fullmatch(part):
            break
        else:
            path += f".{part}" if path else part
    return path
