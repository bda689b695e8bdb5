"""The thread that owns an engine: everybody else sends it commands and is told what happened.

It sleeps while there is nothing to do. A step that raises ends every live request with a BackendError, the cache is
dropped because nobody knows what its blocks hold, and the loop goes on serving: a fault that lasts answers each request
with that error, one that does not costs only the requests of its moment. Tokenizing, chat templates and grammars stay
on the threads of the callers.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

from vtk.errors import BackendError, VtkError
from vtk.llm_serving.affinity import pinned
from vtk.llm_serving.engine import Delta, Generation, LLMEngine

Event: TypeAlias = "Delta | VtkError | None"
Listener: TypeAlias = Callable[[Event], None]
_log = logging.getLogger(__name__)


class Turns(Protocol):
    """Admits the steps of an engine to a device that others use too. Called on the loop's thread."""

    def step(self, decoding: Callable[[], bool]) -> AbstractContextManager[None]:
        """Hold the device for one step; `decoding` says, when it is over, whether streams wait for the next one."""
        ...

    def rest(self) -> None:
        """There is nothing to do until the next step."""
        ...


class _NoTurns:
    """The engine has the device to itself."""

    def step(self, decoding: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def rest(self) -> None:
        pass


class EngineLoop:
    """Serves one engine until `close`. Every method may be called from any thread.

    A listener gets the deltas of its request in order, then one last event: None when the request has ended or was
    aborted, the error when it failed. It runs on the loop's thread and must return at once.

    A process that was forked off has the object and not its thread: there every request is refused, and a stream that
    was open ends with the same BackendError.
    """

    def __init__(self, engine: LLMEngine, *, cpus: frozenset[int] | None = None, turns: Turns | None = None) -> None:
        self._engine = engine
        self._cpus = cpus
        self._turns = turns or _NoTurns()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._process = os.getpid()
        self._listeners: dict[str, Listener] = {}
        self._thread = threading.Thread(target=self._run, name="vtk-llm-engine", daemon=True)
        self._thread.start()

    @property
    def num_live(self) -> int:
        """Requests that somebody is waiting for."""
        return len(self._listeners)

    def check(self, generation: Generation) -> None:
        """Raise RequestError for a request that can never be served, before anything of it starts."""
        self._engine.check(generation)

    def check_process(self) -> None:
        """Raise BackendError in a process that was forked off the engine's, where nothing would ever come."""
        if self._is_forked:
            raise BackendError(
                f"The engine runs in process {self._process}, and process {os.getpid()} was forked off it.",
                hint="Load the model in the process that uses it, or start processes with the method 'spawn'.",
            )

    def submit(self, generation: Generation, listener: Listener) -> Callable[[], None]:
        """Queue a request and return what cancels it, at any time and any number of times.

        Raises RequestError for one that can never be served, BackendError after `close` and in a forked process.
        """
        self.check(generation)
        self._send(lambda: self._add(generation, listener))

        def cancel() -> None:
            self._send_if_open(lambda: self._cancel(generation.request_id, listener))

        return cancel

    def abort(self, request_id: str) -> None:
        """Drop a request by its name; its blocks are free before the next step. No effect if it is not live."""
        self._send_if_open(lambda: self._abort(request_id))

    def stream(self, generation: Generation) -> Generator[Delta, None, None]:
        """The deltas of one request as they come; closing the iterator drops the request."""
        self.check(generation)
        return self._deltas(generation)

    def close(self) -> None:
        """End the loop after the step in progress; live requests fail. Returns when the thread is gone."""
        if self._is_forked:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _deltas(self, generation: Generation) -> Generator[Delta, None, None]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        cancel = self.submit(generation, events.put)
        try:
            while (event := events.get()) is not None:
                if isinstance(event, VtkError):
                    raise event
                yield event
                self.check_process()
        finally:
            cancel()

    @property
    def _is_forked(self) -> bool:
        """Asked before the lock is taken: the thread may have held it at the moment of the fork."""
        return os.getpid() != self._process

    def _send(self, command: Callable[[], None]) -> None:
        self.check_process()
        if not self._send_if_open(command):
            raise BackendError("The engine is closed and takes no more requests.")

    def _send_if_open(self, command: Callable[[], None]) -> bool:
        if self._is_forked:
            return False
        with self._wake:
            if not self._closing:
                self._commands.append(command)
                self._wake.notify()
            return not self._closing

    def _run(self) -> None:
        try:
            with pinned(self._cpus):
                while self._obey():
                    if self._engine.has_work:
                        self._step()
        finally:
            with self._wake:
                self._closing = True
            self._obey()
            self._engine.reset()
            self._turns.rest()
            self._fail_all("The engine was closed before the request had ended.")

    def _obey(self) -> bool:
        """Sleep until there is something to do, and carry out every command so far. False when it is time to go."""
        if not self._engine.has_work:
            self._turns.rest()
        with self._wake:
            self._wake.wait_for(lambda: self._commands or self._closing or self._engine.has_work)
            commands, going_on = list(self._commands), not self._closing
            self._commands.clear()
        for command in commands:
            command()
        return going_on

    def _add(self, generation: Generation, listener: Listener) -> None:
        try:
            self._engine.add(generation)
        except Exception as error:
            failure = error if isinstance(error, VtkError) else BackendError(f"The request failed: {_name(error)}")
            self._tell(listener, failure)
        else:
            self._listeners[generation.request_id] = listener

    def _cancel(self, request_id: str, listener: Listener) -> None:
        """A name may have been used again by the time its first owner lets go of it."""
        if self._listeners.get(request_id) is listener:
            self._abort(request_id)

    def _abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._end(request_id, None)

    def _step(self) -> None:
        try:
            with self._turns.step(lambda: self._engine.is_decoding):
                deltas = self._engine.step()
        except Exception as error:
            _log.exception("a step of the language engine failed")
            self._engine.reset()
            self._fail_all(f"The engine failed on a step and dropped every live request: {_name(error)}")
            return
        for delta in deltas:
            self._pass_on(delta)
        for request_id in {delta.request_id for delta in deltas}:
            if not self._engine.is_live(request_id):
                self._end(request_id, None)

    def _pass_on(self, delta: Delta) -> None:
        listener = self._listeners.get(delta.request_id)
        if listener is not None and not self._tell(listener, delta):
            self._abort(delta.request_id)

    def _end(self, request_id: str, last: Event) -> None:
        listener = self._listeners.pop(request_id, None)
        if listener is not None:
            self._tell(listener, last)

    def _fail_all(self, message: str) -> None:
        for request_id in list(self._listeners):
            self._end(request_id, BackendError(message))

    def _tell(self, listener: Listener, event: Event) -> bool:
        """False if nobody listens any more, for example because an event loop was closed."""
        try:
            listener(event)
        except Exception:
            return False
        return True


def _name(error: Exception) -> str:
    """One line that says what an unexpected exception was."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
