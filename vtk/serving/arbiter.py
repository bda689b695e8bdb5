"""One device, one holder at a time: language steps and batches of pictures take turns.

On a CPU this is also what keeps the threads from crowding each other: the kernels of a step and those of a batch each
use every core, and never at the same time. The rules are in `vtk.serving.turns`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from vtk.errors import DeadlineError, UsageError
from vtk.serving.turns import EngineState, Turn, TurnRules


@dataclass(frozen=True)
class ArbiterSnapshot:
    """Totals since the arbiter was made, in seconds and turns; `waited` sums the waits of all turns of a kind."""

    elapsed: float
    language_busy: float
    vision_busy: float
    language_waited: float
    vision_waited: float
    language_turns: int
    vision_turns: int
    num_waiting: int

    @property
    def idle_share(self) -> float:
        """Share of the time in which nobody used the device, 0..1."""
        return 1 - (self.language_busy + self.vision_busy) / self.elapsed if self.elapsed else 1.0


@dataclass
class _Totals:
    busy: float = 0.0
    waited: float = 0.0
    turns: int = 0


class Arbiter:
    """Thread-safe. Every language engine and every vision model of a device shares one.

    max_itl: seconds within which a stream gets its next token while pictures are served, as long as the smallest batch
    fits beside one step. vision_share: the share of the device that pictures are sure of where both sides always have
    work and `max_itl` allows it; the rest is sure for language. Raises UsageError for values that cannot be.
    """

    def __init__(
        self, *, max_itl: float = 0.2, vision_share: float = 0.5, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not max_itl > 0:
            raise UsageError(f"max_itl must be above 0 seconds, got {max_itl}.")
        if not 0 < vision_share < 1:
            raise UsageError(f"vision_share must be between 0 and 1, both excluded; got {vision_share}.")
        self._rules = TurnRules(max_itl, vision_share)
        self._clock = clock
        self._lock = threading.Lock()
        self._granted: dict[Turn, threading.Event] = {}
        self._totals = {"language": _Totals(), "vision": _Totals()}
        self._born = clock()

    def language(self) -> LanguageSeat:
        """A seat for one language engine; its turns are those of `EngineLoop`."""
        return LanguageSeat(self)

    @contextmanager
    def language_turn(self, *, decoding: Callable[[], bool], engine: EngineState) -> Iterator[None]:
        """Hold the device for one step; `decoding` is asked at its end whether streams wait for the next one."""
        self._take(Turn(self._clock(), engine))
        try:
            yield
        finally:
            self._give_back(is_decoding=decoding())

    def language_rests(self, engine: EngineState) -> None:
        """The engine has nothing to do until its next turn: pictures need not wait for it."""
        with self._lock:
            self._rules.rest(engine)
            self._dispatch()

    @contextmanager
    def vision_turn(self, *, seconds: float, deadline: float | None = None) -> Iterator[VisionTurn]:
        """Hold the device for a batch of an expected length; earlier deadlines (of the clock) go first.

        Raises DeadlineError when the turn has not come by the deadline.
        """
        turn = Turn(self._clock(), seconds=seconds, deadline=deadline)
        self._take(turn)
        try:
            yield VisionTurn(self)
        finally:
            self._give_back()

    def vision_room(self) -> float:
        """Seconds that a batch may take between two steps without breaking max_itl; infinite while nothing decodes."""
        with self._lock:
            return self._rules.room()

    def snapshot(self) -> ArbiterSnapshot:
        """How the device was used so far."""
        with self._lock:
            language, vision = self._totals["language"], self._totals["vision"]
            return ArbiterSnapshot(
                elapsed=self._clock() - self._born,
                language_busy=language.busy,
                vision_busy=vision.busy,
                language_waited=language.waited,
                vision_waited=vision.waited,
                language_turns=language.turns,
                vision_turns=vision.turns,
                num_waiting=len(self._rules.waiting),
            )

    def _may_go_on(self, seconds: float) -> bool:
        with self._lock:
            now = self._clock()
            self._totals["vision"].busy += self._rules.book(now)
            return self._rules.may_go_on(seconds, now)

    def _take(self, turn: Turn) -> None:
        granted = threading.Event()
        with self._lock:
            self._granted[turn] = granted
            self._rules.arrive(turn)
            self._dispatch()
        timeout = None if turn.deadline is None else max(0.0, turn.deadline - turn.arrived)
        if not granted.wait(timeout):
            self._withdraw(turn, granted)
        totals = self._of(turn)
        with self._lock:
            totals.waited += turn.started - turn.arrived
            totals.turns += 1

    def _withdraw(self, turn: Turn, granted: threading.Event) -> None:
        """Leave the queue at the deadline, unless the turn came at the last moment."""
        with self._lock:
            if granted.is_set():
                return
            self._rules.waiting.remove(turn)
            del self._granted[turn]
            self._dispatch()
        raise DeadlineError("The device was not free before the deadline of the pictures.")

    def _give_back(self, *, is_decoding: bool = False) -> None:
        with self._lock:
            turn = self._rules.holder
            assert turn is not None, "nobody holds the device"
            self._of(turn).busy += self._rules.finish(self._clock(), is_decoding=is_decoding)
            self._dispatch()

    def _dispatch(self) -> None:
        """The one place where the device changes hands, always under the lock: no wake-up is lost."""
        chosen = self._rules.start_next(self._clock())
        if chosen is not None:
            self._granted.pop(chosen).set()

    def _of(self, turn: Turn) -> _Totals:
        return self._totals["vision" if turn.engine is None else "language"]


class VisionTurn:
    """The device in the hands of a vision model."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter

    def may_go_on(self, seconds: float) -> bool:
        """Whether another batch of that expected length may follow in the same turn."""
        return self._arbiter._may_go_on(seconds)


class LanguageSeat:
    """One language engine at the arbiter, in the form that `EngineLoop` asks for."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter
        self._engine = EngineState()

    def step(self, decoding: Callable[[], bool]) -> AbstractContextManager[None]:
        """See `Arbiter.language_turn`."""
        return self._arbiter.language_turn(decoding=decoding, engine=self._engine)

    def rest(self) -> None:
        """See `Arbiter.language_rests`."""
        self._arbiter.language_rests(self._engine)
