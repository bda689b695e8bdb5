"""What clients are told when something is wrong, in the shape of their protocol."""

import logging
from collections.abc import Callable

import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient

from vtk import errors
from vtk.errors import VtkError
from vtk.server.errors import RefusedError, headers_of, openai_body, status_of

Client = Callable[..., TestClient]
CASES: list[tuple[VtkError, int, str, str]] = [
    (errors.AccessError("x"), 401, "authentication_error", "invalid_api_key"),
    (errors.NotFoundError("x"), 404, "not_found_error", "model_not_found"),
    (errors.OverloadedError("x"), 429, "rate_limit_error", "rate_limit_exceeded"),
    (errors.UnavailableError("x"), 503, "server_error", "unavailable"),
    (errors.DeadlineError("x"), 408, "timeout_error", "deadline_exceeded"),
    (errors.RequestError("context_length_exceeded", "x"), 400, "invalid_request_error", "context_length_exceeded"),
    (errors.ImageError("truncated", "x"), 400, "invalid_request_error", "image_truncated"),
    (errors.UsageError("x"), 400, "invalid_request_error", "invalid_request"),
    (errors.InputError("x"), 400, "invalid_request_error", "invalid_request"),
    (errors.MissingDependencyError("p", needed_for="A", extra="e"), 501, "server_error", "server_error"),
    (errors.BackendError("x"), 500, "server_error", "server_error"),
    (errors.BundleError("x"), 500, "server_error", "server_error"),
    (RefusedError(413, "body_too_large", "x"), 413, "invalid_request_error", "body_too_large"),
]


@pytest.mark.parametrize(("error", "status", "kind", "code"), CASES)
def test_an_error_has_one_status_type_and_code(error: VtkError, status: int, kind: str, code: str) -> None:
    told = openai_body(error, param="p")["error"]
    assert (status_of(error), told["type"], told["code"], told["param"]) == (status, kind, code, "p")
    assert told["message"] == str(error)


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (2.1, "3")])
def test_retry_after_is_in_whole_seconds(seconds: float, header: str) -> None:
    assert headers_of(errors.OverloadedError("full", retry_after=seconds)) == {"Retry-After": header}


class Body(BaseModel):
    size: int


def routes(app: FastAPI) -> None:
    @app.post("/fails")
    def fails(body: Body) -> None:
        raise ValueError("the secret of the server")

    @app.get("/refuses")
    def refuses() -> None:
        raise errors.OverloadedError("full", retry_after=7)

    @app.get("/breaks")
    def breaks() -> StreamingResponse:
        def parts() -> list[bytes]:  # a generator
            yield b"half"  # type: ignore[misc]
            raise ValueError("the secret of the server")

        return StreamingResponse(parts())


def test_an_expected_failure_is_answered(make_client: Client) -> None:
    answer = make_client(routes).get("/refuses")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"] == {
        "message": "full", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "param", "told"),
    [
        (b'{"size": "big"}', "size", "valid integer"),
        (b"{}", "size", "size"),
        (b'{"size":', None, "JSON"),
        (b'"text"', None, "object"),
    ],
)
def test_an_invalid_body_names_its_part(make_client: Client, content: bytes, param: str | None, told: str) -> None:
    answer = make_client(routes).post("/fails", content=content, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert told in error["message"]


def test_a_bug_is_told_by_its_request_id_only(make_client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "vtk"):
        answer = make_client(routes).post("/fails", json={"size": 1}, headers={"X-Request-Id": "call-7"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "call-7" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert "the secret of the server" in str(record.exc_info[1])
    assert record.__dict__["fields"] == {"request_id": "call-7"}


def test_a_bug_inside_an_answer_is_logged_and_never_shown(
    make_client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "vtk"):
        answer = make_client(routes).get("/breaks")
    assert answer.content == b"half"
    assert [record.levelno for record in caplog.records if record.name == "vtk.server.app"] == [logging.ERROR]


def test_unknown_paths_and_methods_are_told_in_their_protocol(make_client: Client) -> None:
    client = make_client(routes)
    assert client.get("/nothing").json()["error"]["code"] == "not_found"
    assert client.get("/v2x").json()["error"]["code"] == "not_found"
    assert client.get("/v2/nothing").json() == {"error": "There is nothing at this path."}
    answer = client.get("/fails")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["code"] == "method_not_allowed"


def test_no_page_loads_scripts_from_elsewhere(make_client: Client) -> None:
    client = make_client()
    assert [client.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 200]
