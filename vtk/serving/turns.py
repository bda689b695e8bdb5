"""Who may use the device next: the rules of the arbiter, without threads or clocks of their own.

1. One turn at a time. A device that is free never waits for nobody: if somebody waits, somebody goes, unless a
   language engine is between two steps and rule 2 or 3 gives it the next turn.
2. While streams decode, a batch of pictures goes before a step only if that step still ends in time: the end of an
   engine's step and the end of its next are at most `max_itl` apart, less a margin for what no estimate foresees.
3. Where both may go, the side goes that is behind its share of the device (start-time fair queueing: Goyal, Vin and
   Cheng, 1996). A batch that fits beside no step, or found no gap for a second, goes by that rule too: nothing starves.

Language engines go in the order in which their last steps ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# The part of max_itl that batches are not planned into: half of it for the time until their turn comes, half for the
# jitter of threads and for sending tokens on.
MARGIN = 0.1
# How much of the way an estimate falls toward a shorter duration.
_FALL = 0.2
_FADE = 0.002
# Seconds that a batch lets steps pass: it is ordered as if that were its deadline, unless it has an earlier one.
_PATIENCE = 1.0


@dataclass
class UpperEstimate:
    """The next duration of something that repeats, in seconds: rises at once and falls slowly. 0 when never seen."""

    seconds: float = 0.0

    def add(self, duration: float) -> None:
        """Learn from one more."""
        self.seconds = max(duration, self.seconds + _FALL * (duration - self.seconds))

    def fade(self) -> None:
        """Doubt it a little, so that what was slow once is tried again some day."""
        self.seconds *= 1 - _FADE


@dataclass(eq=False)
class EngineState:
    """One language engine. last_end: when its last step ended; is_decoding: streams wait for the next one."""

    step: UpperEstimate = field(default_factory=UpperEstimate)
    last_end: float = -math.inf
    is_decoding: bool = False


@dataclass(eq=False)
class Turn:
    """A wish for the device and, once `started`, its use. engine: None for pictures; seconds: expected length."""

    arrived: float
    engine: EngineState | None = None
    seconds: float = 0.0
    deadline: float | None = None
    started: float = -math.inf

    @property
    def urgency(self) -> float:
        """The time by which a batch of pictures should have gone."""
        due = self.arrived + _PATIENCE
        return due if self.deadline is None else min(due, self.deadline)


class TurnRules:
    """Knows who waits and who holds the device. Not thread-safe: the arbiter calls it under its lock."""

    def __init__(self, max_itl: float, vision_share: float) -> None:
        self.holder: Turn | None = None
        self.waiting: list[Turn] = []
        self._planned = max_itl * (1 - MARGIN)
        self._admitted = max_itl * (1 - MARGIN / 2)
        self._vision_share = vision_share
        self._active: set[EngineState] = set()  # engines with work: they wait, hold, or are between two steps
        # Seconds used, divided by the share: the side with less is behind.
        self._language_used = 0.0
        self._vision_used = 0.0

    def arrive(self, turn: Turn) -> None:
        """Somebody waits from now on. Who was away has saved up nothing."""
        if turn.engine is None:
            if not any(other.engine is None for other in (*self.waiting, *filter(None, (self.holder,)))):
                self._vision_used = max(self._vision_used, self._language_used)
        else:
            if not self._active:
                self._language_used = max(self._language_used, self._vision_used)
            self._active.add(turn.engine)
        self.waiting.append(turn)

    def rest(self, engine: EngineState) -> None:
        """The engine has nothing to do: nobody needs to wait for it."""
        engine.is_decoding = False
        self._active.discard(engine)

    def start_next(self, now: float) -> Turn | None:
        """Give a free device to whoever is next, if anybody may have it."""
        chosen = self._choose(now) if self.holder is None else None
        if chosen is not None:
            self.waiting.remove(chosen)
            chosen.started = now
            self.holder = chosen
        return chosen

    def book(self, now: float) -> float:
        """Charge the holder for the time since it started, which starts anew; the seconds."""
        turn = self.holder
        assert turn is not None, "nobody holds the device"
        seconds, turn.started = now - turn.started, now
        if turn.engine is None:
            self._vision_used += seconds / self._vision_share
        else:
            self._language_used += seconds / (1 - self._vision_share)
        return seconds

    def finish(self, now: float, *, is_decoding: bool = False) -> float:
        """The holder gives the device back; the seconds since its last booking. is_decoding: of a language engine."""
        turn, seconds = self.holder, self.book(now)
        if turn is not None and turn.engine is not None:
            turn.engine.step.add(seconds)
            turn.engine.last_end = now
            turn.engine.is_decoding = is_decoding
        self.holder = None
        return seconds

    def may_go_on(self, seconds: float, now: float) -> bool:
        """Whether vision, which holds the device, may add a batch of `seconds` before anybody else goes."""
        if any(turn.engine is None for turn in self.waiting):
            return False
        return not self._active or self._vision_is_next(seconds, now)

    def room(self) -> float:
        """Seconds that pictures may take between two steps without breaking `max_itl`; infinite while none decode."""
        if not any(engine.is_decoding for engine in self._active):
            return math.inf
        return max(0.0, self._planned - self._round())

    def _choose(self, now: float) -> Turn | None:
        language = min((turn for turn in self.waiting if turn.engine is not None), key=_last_end, default=None)
        vision = min((turn for turn in self.waiting if turn.engine is None), key=lambda t: t.urgency, default=None)
        if vision is None or not self._active:
            return vision or language
        lost_patience = now >= vision.arrived + _PATIENCE
        return vision if self._vision_is_next(vision.seconds, now, lost_patience) else language

    def _vision_is_next(self, seconds: float, now: float, lost_patience: bool = False) -> bool:
        """Rules 2 and 3, beside engines that have work."""
        fits_later = seconds + self._round() <= self._admitted and not self._fits(seconds, now)
        return self._vision_used < self._language_used and (lost_patience or not fits_later)

    def _round(self) -> float:
        """Seconds of one step of every engine that has work."""
        return sum(engine.step.seconds for engine in self._active)

    def _fits(self, seconds: float, now: float) -> bool:
        """Whether the next step of every engine with streams still ends in time after pictures of `seconds`."""
        end = now + seconds
        for engine in sorted(self._active, key=lambda engine: engine.last_end):
            end += engine.step.seconds
            if engine.is_decoding and end > engine.last_end + self._admitted:
                return False
        return True


def _last_end(turn: Turn) -> float:
    assert turn.engine is not None
    return turn.engine.last_end
