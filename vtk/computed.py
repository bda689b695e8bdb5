"""Sequences whose items are made on access."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar, overload

T = TypeVar("T")


class Computed(Sequence[T]):
    """`at` makes an item; a slice is the list of its items."""

    @abstractmethod
    def at(self, index: int) -> T:
        """That of place `index`, which may count from the end. IndexError where there is none."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self.at(place) for place in range(*index.indices(len(self)))]
        return self.at(index)
