"""The pictures of a job, of which there may be millions: a name and a few bytes each, made into an `Item` on access."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vtk.computed import Computed
from vtk.naming import output_name, repeated, stems_alone
from vtk.strings import Strings


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of a job.

    index: place in the job, from 0. path: as the user would open it. file_name: unique path below the folder that all
    inputs share, with forward slashes. output: `file_name` as the stem of the files that the job writes for it.
    source: place in the plan's sources, None where `path` is a file itself. position: of the picture in the source.
    """

    index: int
    path: str
    file_name: str
    output: str
    source: int | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class Folder:
    """What neighboring pictures have in common.

    shown: all of their paths before the name. absolute: of the folder. source: as of `Item`. start: what is to be taken
    from the index of a picture to get its position in the source.
    """

    shown: str
    absolute: str
    source: int | None
    start: int


class FoundItems:
    """Pictures as they are found: the name in bytes and 12 more each, and each folder once."""

    def __init__(self) -> None:
        self.folders: list[Folder] = []
        self.places = array("I")
        self.names = Strings()
        # Paths that do not end in the name, by index: a source may call a picture what no file can be called.
        self.odd: dict[int, str] = {}
        self._numbers: dict[Folder, int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def add(self, path: str, absolute: str, source: int | None = None, position: int = 0) -> None:
        """path: as the user would open it. absolute: what the picture is named by, with forward slashes."""
        index = len(self.names)
        top, _, name = absolute.rpartition("/")
        last = path.rpartition("/")[2]
        start = 0 if source is None else index - position
        folder = Folder(path[: len(path) - len(last)], top, source, start)
        number = self._numbers.setdefault(folder, len(self.folders))
        if number == len(self.folders):
            self.folders.append(folder)
        if last != name:
            self.odd[index] = path
        self.places.append(number)
        self.names.append(name)

    def path(self, index: int) -> str:
        """That of picture `index`, as the user would open it."""
        return self.odd.get(index) or self.folders[self.places[index]].shown + self.names[index]

    def without(self, dropped: Sequence[int]) -> FoundItems:
        """All but these, rising indexes."""
        left, gone = FoundItems(), iter([*dropped, -1])
        following = next(gone)
        for index, name in enumerate(self.names):
            if index == following:
                following = next(gone)
                continue
            folder = self.folders[self.places[index]]
            position = 0 if folder.source is None else index - folder.start
            left.add(self.path(index), f"{folder.absolute}/{name}", folder.source, position)
        return left


class FileNames(Computed[str]):
    """Of each picture found, the path below `root`."""

    def __init__(self, found: FoundItems, root: str) -> None:
        relative = (os.path.relpath(folder.absolute or "/", root) for folder in found.folders)
        self._prefixes = ["" if name == "." else f"{name}/" for name in relative]
        self._found = found

    def __len__(self) -> int:
        return len(self._found)

    def at(self, index: int) -> str:
        return self._prefixes[self._found.places[index]] + self._found.names[index]


class Items(Computed[Item]):
    """All pictures of a job in order, each once."""

    def __init__(self, found: FoundItems, root: str) -> None:
        """root: absolute folder that holds all of them. Of a picture that was found twice the first one counts."""
        dropped = repeated(FileNames(found, root))
        self.num_dropped = len(dropped)
        self._found = found.without(dropped) if dropped else found
        self.file_names = FileNames(self._found, root)
        self._alone = np.packbits(stems_alone(self.file_names))

    def __len__(self) -> int:
        return len(self._found)

    def at(self, index: int) -> Item:
        place = range(len(self))[index]
        found, name = self._found, self.file_names[place]
        folder = found.folders[found.places[place]]
        alone = bool(self._alone[place >> 3] << (place & 7) & 0x80)
        position = 0 if folder.source is None else place - folder.start
        return Item(place, found.path(place), name, output_name(name, alone=alone), folder.source, position)


class Part(Computed[Item]):
    """Some of the pictures of a job, which keep their `index`; `order` holds it for each of them."""

    def __init__(self, items: Sequence[Item], order: array[int]) -> None:
        self.items = items
        self.order = order

    def __len__(self) -> int:
        return len(self.order)

    def at(self, index: int) -> Item:
        return self.items[self.order[index]]
