"""One JSON object a line, with an id for each request and nothing of what it said."""

import io
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from vtk.server.logs import configure_logs

Client = Callable[..., TestClient]


@pytest.fixture
def stream() -> io.StringIO:
    """What the server logs."""
    stream = io.StringIO()
    configure_logs(stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def routes(app: FastAPI) -> None:
    @app.post("/echo/{name}")
    def echo(name: str, body: dict[str, Any]) -> dict[str, Any]:
        return body

    @app.get("/boom")
    def boom() -> None:
        raise ValueError("line one\nline two")


def test_a_request_is_one_line_with_its_id_and_nothing_of_its_content(make_client: Client, stream: io.StringIO) -> None:
    client = make_client(routes, api_keys=("hush-key",))
    body = {"prompt": "hush-prompt", "image": "data:image/png;base64,aHVzaA=="}
    headers = {"Authorization": "Bearer hush-key", "X-Request-Id": "call-1", "Cookie": "hush-cookie"}
    answer = client.post("/echo/m?token=hush-query", json=body, headers=headers)
    assert answer.headers["x-request-id"] == "call-1"
    (line,) = lines(stream)
    seconds = line.pop("seconds")
    assert 0 <= seconds < 60
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info", "logger": "vtk.server.access", "message": "request", "request_id": "call-1", "method": "POST",
        "path": "/echo/m", "status": 200, "error": None, "bytes": len(answer.content), "client": "testclient",
    }  # fmt: skip
    assert "hush" not in stream.getvalue()
    assert "aHVzaA" not in stream.getvalue()


def test_a_wrong_key_is_not_logged_either(make_client: Client, stream: io.StringIO) -> None:
    make_client(api_keys=("right",)).get("/version", headers={"Authorization": "Bearer almost-right"})
    (line,) = lines(stream)
    assert (line["status"], line["error"]) == (401, "invalid_api_key")
    assert "almost" not in stream.getvalue()


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", "é", '"}', "<script>"])
def test_an_id_that_is_no_plain_word_is_replaced(make_client: Client, given: str) -> None:
    client = make_client()
    ids = {client.get("/health", headers={"X-Request-Id": given.encode()}).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2, "each request has its own"
    assert all(len(name) == 32 and name.isalnum() for name in ids)


def test_a_path_cannot_write_lines_of_its_own(make_client: Client, stream: io.StringIO) -> None:
    make_client().get("/a%0A%7B%22level%22%3A%22error%22%7D")
    (line,) = lines(stream)
    assert line["path"] == '/a\n{"level":"error"}'


def test_a_traceback_stays_in_its_line(make_client: Client, stream: io.StringIO) -> None:
    make_client(routes).get("/boom", headers={"X-Request-Id": "call-2"})
    failed, request = lines(stream)
    assert (failed["level"], failed["request_id"], request["status"]) == ("error", "call-2", 500)
    assert "line one\nline two" in failed["traceback"]


def test_what_libraries_warn_of_is_a_line_too(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn.error").info("chatter")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    (line,) = lines(stream)
    assert (line["logger"], line["message"]) == ("uvicorn.error", "Invalid HTTP request received.")
