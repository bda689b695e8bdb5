"""Requests made up from the description of `/v1/vision/segment`, at a model that does take prompts."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from vtk.runtime import Runtime
from vtk.server.app import create_app
from vtk.server.context import ServerContext
from vtk.server.metrics import Metrics
from vtk.server.settings import ServerSettings
from vtk.serving.settings import RuntimeSettings

PATH = "/v1/vision/segment"


@pytest.fixture(scope="module")
def app(pointed_bundle: Path) -> Iterator[Any]:
    settings = RuntimeSettings(
        selected=(str(pointed_bundle),), backend="ort", threads=1, memory_bytes=1 << 30, verify_on_load=False
    )
    runtime = Runtime(settings)
    try:
        runtime.start()
        server = ServerSettings(host="0.0.0.0", allow_unauthenticated=True)
        yield create_app(ServerContext(runtime, server, Metrics()))
    finally:
        runtime.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_prompt_is_answered_with_a_fault(app: Any, encode: Callable[..., bytes], mode: GenerationMode) -> None:
    picture = base64.b64encode(encode((200, 90, 10), (48, 32))).decode()
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    statuses: set[int] = set()

    @hypothesis_settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=schema[PATH]["POST"].as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        if isinstance(case.body, dict) and case.media_type == "application/json":
            for name in ("model", "timeout_ms", "iou_threshold", "classes"):
                case.body.pop(name, None)
            if "images" in case.body:
                case.body["images"] = [picture]
            case.body.setdefault("prompts", ["cat"])
        statuses.add(case.call_and_validate(checks=[not_a_server_error]).status_code)

    with suppress(Unsatisfiable):
        check()
    assert 400 in statuses
    assert mode is GenerationMode.NEGATIVE or 200 in statuses
