"""Threads that prepare pictures beside the engines: the most urgent job first, and all of them at low priority."""

from __future__ import annotations

import heapq
import itertools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from vtk.errors import UnavailableError

T = TypeVar("T")
# On Linux a nice value belongs to a thread: these take what the engines leave, and little of a core that they share.
_NICENESS = 10


class Workers:
    """A pool whose waiting jobs are ordered by rank, lowest first, and by arrival within a rank. Thread-safe.

    niceness: of the threads; 0 for those that run engines.
    """

    def __init__(self, count: int, name: str, *, niceness: int = _NICENESS) -> None:
        self._niceness = niceness
        self._jobs: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._change = threading.Condition()
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], T], rank: float = 0) -> Future[T]:
        """Queue a job; cancelling its future before it starts drops it. Raises UnavailableError after `close`."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                _settle(future, job)

        with self._change:
            if self._closing:
                raise UnavailableError("The model is being unloaded and takes no more pictures.")
            heapq.heappush(self._jobs, (rank, next(self._numbers), run))
            self._change.notify()
        return future

    def close(self) -> None:
        """Do what is queued, take nothing more, and return when the threads are gone."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        _step_back(self._niceness)
        while (run := self._next()) is not None:
            run()

    def _next(self) -> Callable[[], None] | None:
        with self._change:
            self._change.wait_for(lambda: self._jobs or self._closing)
            return heapq.heappop(self._jobs)[2] if self._jobs else None


def _step_back(niceness: int) -> None:
    if sys.platform == "linux":
        me = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, me, max(niceness, os.getpriority(os.PRIO_PROCESS, me)))


def _settle(future: Future[T], job: Callable[[], T]) -> None:
    try:
        result = job()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
