"""The engine for asyncio: one coroutine per request over the one thread that computes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from vtk.errors import VtkError
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.engine_loop import EngineLoop, Event


class AsyncEngine:
    """Streams for the tasks of an event loop; several event loops may share one."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop

    def stream(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        """The deltas of one request as they come. Starts when it is first iterated.

        Raises RequestError at once for a request that can never be served, so that a server can refuse it before it
        answers. Closing the generator, or cancelling the task that waits for it, drops the request: its blocks are free
        within one step.
        """
        self._loop.check(generation)
        return self._deltas(generation)

    def abort(self, request_id: str) -> None:
        """Drop a request by its name; whoever streams it sees the end of the stream."""
        self._loop.abort(request_id)

    async def close(self) -> None:
        """End the engine's thread without blocking the event loop."""
        await asyncio.to_thread(self._loop.close)

    async def _deltas(self, generation: Generation) -> AsyncGenerator[Delta, None]:
        events: asyncio.Queue[Event] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def tell(event: Event) -> None:
            here.call_soon_threadsafe(events.put_nowait, event)

        cancel = self._loop.submit(generation, tell)
        try:
            while (event := await events.get()) is not None:
                if isinstance(event, VtkError):
                    raise event
                yield event
                self._loop.check_process()
        finally:
            cancel()
