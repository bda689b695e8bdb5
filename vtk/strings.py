"""Many texts in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from vtk.computed import Computed


class Strings(Computed[str]):
    """Texts in one buffer: their UTF-8 bytes and 8 more for each. Names of any bytes keep them (surrogates)."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._buffer = bytearray()
        self._ends = array("Q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self._buffer += text.encode("utf-8", "surrogatepass")
        self._ends.append(len(self._buffer))

    def __len__(self) -> int:
        return len(self._ends)

    def at(self, index: int) -> str:
        place = range(len(self))[index]
        start = self._ends[place - 1] if place else 0
        return self._buffer[start : self._ends[place]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))
