"""Server-sent events: a response that is written piece by piece and given up when the client leaves."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vtk.errors import BackendError, VtkError
from vtk.server.disconnect import cancel, left
from vtk.server.errors import openai_body
from vtk.server.openai.errors import param_of

DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends what `chunks` gives, each piece in one write; `close` is awaited however it ends.

    A failure after the status was sent is one `error` event with OpenAI's body, and the stream ends without [DONE].
    """

    def __init__(self, chunks: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]) -> None:
        super().__init__(None, headers=_HEADERS, media_type="text/event-stream")
        del self.headers["content-length"]
        self._chunks = chunks
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        watcher = asyncio.ensure_future(left(receive))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                writer.result()
        finally:
            await cancel(writer, watcher)
            await self._close()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except VtkError as error:
            await send({"type": "http.response.body", "body": error_event(error), "more_body": True})
        except OSError:
            return  # the client is gone
        except Exception:
            _log.exception("a stream failed")
            failure = BackendError("The server failed on this request.", hint="Its log says why.")
            await send({"type": "http.response.body", "body": error_event(failure), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_event(error: VtkError) -> bytes:
    """One event that ends a stream."""
    return f"event: error\ndata: {json.dumps(openai_body(error, param=param_of(error)))}\n\n".encode()
