"""One inference request and its answer, whatever carried them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vtk.errors import UsageError
from vtk.server.kserve.tensors import InputTensor, OutputTensor

# Triton counts priorities from 1, the first to be served; 0 or none means the middle.
PRIORITY_LEVELS = 9
DEFAULT_PRIORITY = 5
MAX_TIMEOUT = (1 << 63) - 1

_REQUEST_PARAMETERS: Mapping[str, type] = {"priority": int, "timeout": int, "binary_data_output": bool}
_OUTPUT_PARAMETERS: Mapping[str, type] = {"binary_data": bool, "classification": int}


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a client named. binary: None leaves it to the request. classification: top classes, or None."""

    name: str
    binary: bool | None = None
    classification: int | None = None


@dataclass(frozen=True)
class RequestOptions:
    """What concerns the whole request.

    priority: Ticket's, lower first, 0 is usual. timeout: seconds, None for none. binary: outputs in binary form unless
    one says otherwise; HTTP only.
    """

    priority: int = 0
    timeout: float | None = None
    binary: bool = False


@dataclass(frozen=True, eq=False)
class InferRequest:
    """model, version ("" is the newest) and id as sent; no outputs named means all of them."""

    model: str
    version: str
    id: str
    inputs: tuple[InputTensor, ...]
    outputs: tuple[RequestedOutput, ...]
    options: RequestOptions


@dataclass(frozen=True, eq=False)
class InferResponse:
    """version: the one that answered. id: the request's."""

    model: str
    version: str
    id: str
    outputs: tuple[OutputTensor, ...]


def request_options(parameters: Mapping[str, object]) -> RequestOptions:
    """The parameters of a request: priority 0..9, timeout in microseconds. Raises UsageError."""
    known = check_parameters(parameters, _REQUEST_PARAMETERS, "the request")
    priority, timeout = known.get("priority", 0), known.get("timeout", 0)
    if not 0 <= priority <= PRIORITY_LEVELS:
        raise UsageError(
            f"priority must be 1 (served first) to {PRIORITY_LEVELS}, or 0 for the usual one; got {priority}."
        )
    if not 0 <= timeout <= MAX_TIMEOUT:
        raise UsageError(f"timeout is in microseconds, 0 (none) to {MAX_TIMEOUT}; got {timeout}.")
    return RequestOptions(
        priority=priority - DEFAULT_PRIORITY if priority else 0,
        timeout=timeout / 1e6 if timeout else None,
        binary=known.get("binary_data_output", False),
    )


def requested_output(name: str, parameters: Mapping[str, object]) -> RequestedOutput:
    """One named output. Raises UsageError for parameters that are not served."""
    known = check_parameters(parameters, _OUTPUT_PARAMETERS, f"output '{name}'")
    return RequestedOutput(name, known.get("binary_data"), known.get("classification"))


def check_parameters(parameters: Mapping[str, object], known: Mapping[str, type], where: str) -> dict[str, Any]:
    """The parameters, if each is known and of its type: a dropped one would change the answer in silence."""
    for name, value in parameters.items():
        kind = known.get(name)
        if kind is None:
            raise UsageError(
                f"Parameter '{name}' of {where} is not served.",
                hint=f"Known here: {', '.join(known)}." if known else None,
            )
        if type(value) is not kind:
            raise UsageError(f"Parameter '{name}' of {where} must be {kind.__name__}; got {value!r:.80}.")
    return dict(parameters)
