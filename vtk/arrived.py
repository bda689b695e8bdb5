"""Pictures of a job whose number is not known beforehand, some at a time."""

from __future__ import annotations

from abc import abstractmethod

from vtk.computed import Computed
from vtk.items import Item


class Arrived(Computed[Item]):
    """The `num_items` items of a job from place `start` on; those before it are done and no longer there."""

    def __init__(self, start: int, num_items: int) -> None:
        self.start = start
        self.num_items = num_items

    @abstractmethod
    def item(self, index: int) -> Item:
        """That of place `index` in the job, which is one of these."""

    def __len__(self) -> int:
        return self.start + self.num_items

    def at(self, index: int) -> Item:
        if not self.start <= index < len(self):
            raise IndexError(index)
        return self.item(index)
