"""The course of every generating request: prepare, start, and only then answer, whole or in pieces."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from vtk.llm_serving.engine import Delta
from vtk.llm_serving.results import GenerationResult
from vtk.server.context import ServerContext
from vtk.server.disconnect import unless_left
from vtk.server.openai.event_stream import DONE, EventStream
from vtk.server.openai.generation_fields import StreamOptions
from vtk.server.openai.session import Session


class Writer(Protocol):
    """Puts the deltas of one request into the shape of its route."""

    object_name: str

    def opening(self) -> Iterator[str]:
        """Choices, as JSON, that begin a stream."""
        ...

    def choices(self, which: int, delta: Delta) -> Iterator[str]:
        """What a delta of generation `which` adds, each the JSON of one choice of a chunk."""
        ...

    def whole(self, results: Sequence[GenerationResult]) -> Any:
        """The whole answer, as plain dictionaries. Runs on a thread of its own."""
        ...


Start = Callable[[Session], Coroutine[Any, Any, Writer]]


async def answer(
    context: ServerContext, request: Request, *, prefix: str, model: str, options: StreamOptions | None, start: Start
) -> Response:
    """Run `start`, which prepares the request and hands it to the engine, and answer with what its writer makes.

    options None: in one piece. Nothing is sent before the first token is there, so that every failure before it has its
    own status code. A client that leaves ends the work at any of these points.
    """
    session = Session(context, model, f"{prefix}-{uuid.uuid4().hex}")
    try:
        writer = await unless_left(request, start(session))
        if options is None:
            response = await unless_left(request, _whole(session, writer))
            await session.close()
            return response
    except BaseException:
        await session.close()
        raise
    return EventStream(_chunks(session, writer, options), session.close)


async def _whole(session: Session, writer: Writer) -> JSON:
    results = await session.collect()
    # With log-probabilities this is a lot of text, and streams must not wait for it.
    return await asyncio.to_thread(lambda: JSON(writer.whole(results)))


class JSON(Response):
    """A body of plain dictionaries, written as it is."""

    def __init__(self, body: Any) -> None:
        super().__init__(json.dumps(body, ensure_ascii=False, separators=(",", ":")), media_type="application/json")


async def _chunks(session: Session, writer: Writer, options: StreamOptions) -> AsyncIterator[bytes]:
    """All that came in one moment is one piece."""
    head, tail = _frame(session, writer.object_name, options)

    def framed(choices: Iterator[str]) -> Iterator[str]:
        end = tail if not options.continuous_usage_stats else _usage_tail(session)
        return (f"{head}[{choice}]{end}" for choice in choices)

    opening = "".join(framed(writer.opening()))
    async for arrived in session:
        pieces = [piece for which, delta in arrived for piece in framed(writer.choices(which, delta))]
        if opening or pieces:
            yield (opening + "".join(pieces)).encode()
            opening = ""
    if options.include_usage:
        yield f"{head}[]{_usage_tail(session)}".encode()
    yield DONE


def _frame(session: Session, object_name: str, options: StreamOptions) -> tuple[str, str]:
    """What stands before and after the choices of every chunk."""
    constant = {"id": session.request_id, "object": object_name, "created": session.created, "model": session.name}
    head = json.dumps(constant, separators=(",", ":"), ensure_ascii=False)[:-1] + ',"choices":'
    return f"data: {head}", ',"usage":null}\n\n' if options.include_usage else "}\n\n"


def _usage_tail(session: Session) -> str:
    return f',"usage":{json.dumps(session.usage(), separators=(",", ":"))}}}\n\n'
