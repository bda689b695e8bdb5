"""What the server tells about itself: one JSON object a line, with the id of the request, never its content."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from datetime import datetime, timezone
from typing import Any, TextIO

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from vtk.server.layers import Layer

REQUEST_ID = "x-request-id"
CLIENT_LEFT = 499  # nginx's number for a client that was gone before the answer began
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
_access = logging.getLogger("vtk.server.access")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `extra={"fields": {...}}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logs(stream: TextIO) -> None:
    """Send the logs of vtk, and what its libraries warn of, to `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("vtk").setLevel(logging.INFO)


def request_id(scope: Scope) -> str:
    """The id that `RequestLog` gave to this request."""
    return str(scope["state"]["request_id"])


class RequestLog(Layer):
    """Gives every request an id (the client's own x-request-id if it is a plain word) and logs how it ended."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(REQUEST_ID, "")
        name = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = name
        entry = _Entry(scope, name)

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = name
            else:
                entry.size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, tell)
        finally:
            _access.info("request", extra={"fields": entry.fields()})


class _Entry:
    """What is known of a request by its end. The query is left out: it may hold what the body may."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._name = name
        self._started = time.monotonic()
        self.status = CLIENT_LEFT
        self.size = 0

    def fields(self) -> dict[str, Any]:
        client = self._scope.get("client")
        return {
            "request_id": self._name,
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self.status,
            "error": self._scope["state"].get("error_code"),
            "seconds": round(time.monotonic() - self._started, 6),
            "bytes": self.size,
            "client": client[0] if client else None,
        }
