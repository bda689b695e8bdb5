"""The one way from an item of a plan to its picture, wherever that lies."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from vtk.errors import ImageError
from vtk.preprocess.decode import DEFAULT, DecodeOptions, read_picture
from vtk.preprocess.resize import RGBImage
from vtk.sources.base import OpenSource, Picture, Source, encoded

if TYPE_CHECKING:
    from vtk.items import Item

# Items come in the order of their sources; threads that run ahead reach into the next one, rarely further.
MAX_OPEN = 4


class Reader:
    """Reads the pictures of a plan. `read` may be called from several threads; `close` comes after the last of them."""

    def __init__(self, sources: Sequence[Source] = ()) -> None:
        self.sources = sources
        self._open: dict[int, OpenSource] = {}
        self._users: dict[int, int] = {}
        self._lock = threading.Lock()

    def read(self, item: Item) -> Picture:
        """The picture of `item`. Raises ImageError when it cannot be read; the next one can."""
        if item.source is None:
            return encoded(read_picture(Path(item.path)))
        try:
            source = self._enter(item.source)
            try:
                return source.read(item.position)
            finally:
                self._leave(item.source)
        except OSError as error:
            raise ImageError("unreadable", f"It cannot be read: {error.strerror or error}.") from error

    def pixels(self, item: Item, options: DecodeOptions = DEFAULT) -> RGBImage:
        """The decoded picture of `item`, (h, w, 3). Raises ImageError, which names the item."""
        try:
            return self.read(item).pixels(options)
        except ImageError as error:
            raise ImageError(error.reason, f"{item.path}: {error.message}", hint=error.hint) from error

    def close(self) -> None:
        """Close what is open; a later `read` opens it again."""
        with self._lock:
            opened, self._open = self._open, {}
        for source in opened.values():
            source.close()

    def _enter(self, number: int) -> OpenSource:
        with self._lock:
            if number not in self._open:
                self._open[number] = self.sources[number].open()
            source = self._open[number] = self._open.pop(number)
            self._users[number] = self._users.get(number, 0) + 1
            return source

    def _leave(self, number: int) -> None:
        """Close the sources that were used least recently, unless another thread is reading there."""
        with self._lock:
            self._users[number] -= 1
            idle = [other for other in self._open if not self._users.get(other)]
            old = [self._open.pop(other) for other in idle[: max(0, len(self._open) - MAX_OPEN)]]
        for source in old:
            source.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
