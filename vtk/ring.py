"""Slots in turn: which picture gets which row of which slot, and when a batch goes on its way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from vtk.items import Item
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.slots import Slot
from vtk.sources.base import Picture

# So many members per row start a batch, however few of them are pictures.
MEMBERS_PER_ROW = 4

W = TypeVar("W")


@dataclass(frozen=True)
class Loaded:
    """A picture in its row of a slot. picture: without its content, and pixels: None, unless a format wants them."""

    item: Item
    row: int
    geometry: Geometry
    picture: Picture
    pixels: RGBImage | None


@dataclass(frozen=True)
class Failed:
    """A picture that has ended in the ledger; `reason` is a stable word, `message` a sentence."""

    item: Item
    reason: str
    message: str


@dataclass(frozen=True)
class Repeated:
    """A picture that has the bytes of an earlier one of the job."""

    item: Item
    picture: Picture


Member: TypeAlias = Loaded | Failed | Repeated


@dataclass(eq=False)
class Batch:
    """One use of a slot. Its members are in input order and None while on their way; `filled` tells that none is."""

    slot: Slot
    members: list[Member | None] = field(default_factory=list)
    filled: threading.Event = field(default_factory=threading.Event)
    num_rows: int = 0
    started: bool = False

    def wait(self) -> list[Member]:
        """All members, once every picture is in its row."""
        self.filled.wait()
        return [member for member in self.members if member is not None]


@dataclass(frozen=True)
class Seat:
    """Where a picture goes: `row` of the batch's slot, and `index` among its members."""

    batch: Batch
    index: int
    row: int


class Ring(Generic[W]):
    """Hands items to any number of loading threads and seats what they make of them in input order.

    A batch so holds the same pictures in every run, whichever thread was faster, and a failure takes no row. A thread
    waits for its turn with its picture in hand. Whatever is alive belongs to one of these threads or one of the slots.
    """

    def __init__(self, items: Iterable[Item], slots: Iterable[Slot], rows: int, start: Callable[[Batch], W]) -> None:
        """rows: of each slot. `start(batch)` is called in order, when a batch's last row is taken, not yet filled."""
        self._items = iter(items)
        self._free = deque(slots)
        self._rows = rows
        self._start = start
        self._changed = threading.Condition()
        self._open: Batch | None = None
        self._started: deque[tuple[Batch, W]] = deque()
        self._num_taken = self._num_seated = 0
        self._at_end = self._stopped = False
        self._error: BaseException | None = None

    def take(self) -> tuple[int, Item] | None:
        """An item and its turn; None when there is nothing more to load."""
        with self._changed:
            item = None if self._stopped or self._at_end else next(self._items, None)
            if item is None:
                self._at_end = True
                self._start_last()
                return None
            self._num_taken += 1
            return self._num_taken - 1, item

    def seat(self, turn: int, unseated: Callable[[], Member | None]) -> Seat | None:
        """Wait for the turn and a free slot. The row of a picture; None for one that takes none, or after `stop`.

        `unseated` is asked when the turn has come: it returns the member that takes no row, if this is one.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._may_seat(turn))
            if self._stopped:
                return None
            batch = self._open = self._open or Batch(self._free.popleft())
            seat, member = Seat(batch, len(batch.members), batch.num_rows), unseated()
            batch.members.append(member)
            batch.num_rows += member is None
            if batch.num_rows == self._rows or len(batch.members) == MEMBERS_PER_ROW * self._rows:
                self._start_open(batch)
            self._num_seated += 1
            self._start_last()
            self._changed.notify_all()
            return seat if member is None else None

    def put(self, seat: Seat, member: Member) -> None:
        """What has become of a seated picture."""
        with self._changed:
            seat.batch.members[seat.index] = member
            self._tell_if_filled(seat.batch)

    def free(self, batch: Batch) -> None:
        """Let the slot carry another batch."""
        with self._changed:
            self._free.append(batch.slot)
            self._changed.notify_all()

    def stop(self, error: BaseException | None = None) -> None:
        """Load nothing more; `error` is what whoever iterates shall meet."""
        with self._changed:
            self._stopped, self._error = True, self._error or error
            self._changed.notify_all()

    def __iter__(self) -> Iterator[tuple[Batch, W]]:
        """Each batch with what `start` returned, in order; raises the error of `stop`."""
        while (entry := self._next()) is not None:
            yield entry

    def _next(self) -> tuple[Batch, W] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._error or self._is_done())
            if self._error is not None:
                raise self._error
            return self._started.popleft() if self._started else None

    def _may_seat(self, turn: int) -> bool:
        return self._num_seated == turn and bool(self._open or self._free)

    def _is_done(self) -> bool:
        return self._stopped or (self._at_end and self._num_seated == self._num_taken)

    def _start_last(self) -> None:
        if self._open is not None and not self._stopped and self._is_done():
            self._start_open(self._open)
        self._changed.notify_all()

    def _start_open(self, batch: Batch) -> None:
        self._open, batch.started = None, True
        self._started.append((batch, self._start(batch)))
        self._tell_if_filled(batch)

    def _tell_if_filled(self, batch: Batch) -> None:
        if batch.started and all(member is not None for member in batch.members):
            batch.filled.set()
