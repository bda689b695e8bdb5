"""Many texts in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload


class Strings(Sequence[str]):
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

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        start = self._ends[place - 1] if place else 0
        return self._buffer[start : self._ends[place]].decode("utf-8", "surrogatepass")

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))
