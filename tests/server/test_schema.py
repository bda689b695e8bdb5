"""Requests made up from the server's own description: none of them may be the server's fault."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import Limits, ServerSettings

MAX_TOKENS = 4
EXAMPLES = 15
MODELS = {
    "/v1/vision/embed": "tiny-dino",
    "/v1/vision/detect": "toy-deim",
    "/v1/vision/segment": "toy-deim",
    "/console/api/pca": "tiny-dino",
}


@pytest.fixture(scope="module")
def schema(runtime: Any) -> Any:
    """Of a server that answers under any name, as the tool has one of its own."""
    settings = ServerSettings(host="0.0.0.0", allow_unauthenticated=True, limits=Limits(max_n=4))
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(ServerContext(runtime, settings, Metrics())))


def reach_a_model(case: Any) -> None:
    """A made-up name would end almost every request with 404; those that control models keep theirs."""
    name = MODELS.get(case.path, "tiny-llama")
    if "{model}" in case.path and "/repository/" not in case.path:
        case.path_parameters = {**case.path_parameters, "model": "toy-deim"}
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = name
        if case.path.endswith("completions"):
            case.body.pop("max_completion_tokens", None)
            case.body["max_tokens"] = MAX_TOKENS


def check_operation(operation: Any, mode: GenerationMode) -> None:
    @hypothesis_settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        reach_a_model(case)
        case.call_and_validate(checks=[not_a_server_error])

    check()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_is_answered_with_a_fault(schema: Any, mode: GenerationMode) -> None:
    """As described, and with something wrong; an operation without parameters has no wrong requests."""
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= MODELS.keys() | {"/v1/chat/completions", "/v2/health/live"}
    for operation in operations:
        with suppress(Unsatisfiable):
            check_operation(operation, mode)
