"""What the engine says of one or several generations, in the order in which it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from vtk.errors import BackendError, DeadlineError, RequestError, UnavailableError
from vtk.llm_serving.core.request import FinishReason
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.sampling.sampler import NOT_NUMBERS
from vtk.server.disconnect import cancel

if TYPE_CHECKING:
    from vtk.serving.language_model import LanguageModel

Arrived: TypeAlias = "list[tuple[int, Delta]]"


class Feed:
    """Iterates over lists of (which generation, delta): all that has come since the last one was taken.

    So a slow reader gets several steps in one piece, and never holds the engine up. Raises the error of a generation
    that fails, RequestError for an output that its grammar gave up, DeadlineError for one that waited too long,
    UnavailableError for one that the engine dropped. `close` frees the requests that have not ended.
    """

    def __init__(self, model: LanguageModel, generations: Sequence[Generation]) -> None:
        self._ready: Arrived = []
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        streams = [(model.stream(generation), generation.params.n) for generation in generations]
        self._tasks = [asyncio.ensure_future(self._pump(i, *pair)) for i, pair in enumerate(streams)]
        self._num_open = len(self._tasks)

    def __aiter__(self) -> Feed:
        return self

    async def __anext__(self) -> Arrived:
        await self.wait()
        if not self._ready:
            raise StopAsyncIteration
        ready, self._ready = self._ready, []
        return ready

    async def wait(self) -> None:
        """Until there is something to take or everything has ended. Raises what went wrong before that."""
        while not self._ready and self._error is None and self._num_open:
            self._changed.clear()
            await self._changed.wait()
        if not self._ready and self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Free what has not ended. May be called again."""
        await cancel(*self._tasks)

    async def _pump(self, which: int, stream: AsyncGenerator[Delta, None], num_open: int) -> None:
        try:
            async for delta in stream:
                _check(delta)
                num_open -= delta.finish_reason is not None
                self._ready.append((which, delta))
                self._changed.set()
            if num_open:
                raise UnavailableError("The request was dropped before it had ended.", hint="Send it again.")
        except Exception as error:
            self._error = self._error or error
        finally:
            self._num_open -= 1
            self._changed.set()
            await stream.aclose()


def _check(delta: Delta) -> None:
    if delta.finish_reason is FinishReason.TIMEOUT:
        raise DeadlineError("The request waited too long in the queue and was not started.")
    if delta.finish_reason is FinishReason.ABORT and delta.stop_reason == NOT_NUMBERS:
        raise BackendError(f"The output was given up: {NOT_NUMBERS}.")
    if delta.finish_reason is FinishReason.ABORT:
        raise RequestError("grammar_failed", f"The output was given up: {delta.stop_reason}.")
