"""Names of pictures inside sources: which count, and how they become paths that stay where they belong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence

from vtk.naming import split_name
from vtk.sources.base import Entry

# Also formats that are not decoded here: such a picture ends in the ledger instead of being passed over.
PICTURE_SUFFIXES = frozenset(
    [
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif", ".avif"),
        *(".heic", ".heif", ".jp2", ".j2k", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm"),
    ]
)
UP_AND_STAY = ("", ".", "..")


def suffix_of(name: str) -> str:
    """In lower case, or "no suffix"."""
    return split_name(name)[2].lower() or "no suffix"


def clean_name(name: str) -> str:
    """A relative path with forward slashes that names nothing above the folder it is put into.

    `..`, `.`, empty parts, a leading slash and NUL bytes are dropped; a backslash separates as on Windows.
    """
    parts = name.replace("\\", "/").replace("\0", "").split("/")
    return "/".join(part for part in parts if part not in UP_AND_STAY) or "unnamed"


class Census:
    """Sorts the members of one archive: pictures get a clean, unique name, all others are counted."""

    def __init__(self, *, also: Callable[[str], bool] | None = None) -> None:
        """`also`: names that count beside those with a picture suffix."""
        self.also = also
        self.entries: list[Entry] = []
        self.ignored: Counter[str] = Counter()
        self.hidden = 0
        self._taken: set[str] = set()

    def wants(self, name: str) -> bool:
        """Whether the member counts as a picture: a picture suffix, and no part of its path with a leading dot."""
        clean = clean_name(name)
        if any(part.startswith(".") for part in clean.split("/")):
            self.hidden += 1
            return False
        if suffix_of(clean) not in PICTURE_SUFFIXES and not (self.also and self.also(clean)):
            self.ignored[suffix_of(clean)] += 1
            return False
        return True

    def add(self, name: str) -> None:
        """Take one picture; a name that was taken before gets a number (`a~2.jpg`)."""
        self.entries.append(Entry(self._unique(clean_name(name)), name))

    def _unique(self, clean: str) -> str:
        stem, suffix = os.path.splitext(clean)  # noqa: PTH122
        name, number = clean, 1
        while name in self._taken:
            number += 1
            name = f"{stem}~{number}{suffix}"
        self._taken.add(name)
        return name


def key_of(name: str) -> str:
    """WebDataset's `__key__`: the path up to the first dot of its last part, so that members of a sample share it."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(".")[0]


def unique_names(names: Sequence[str]) -> list[Entry]:
    """Entries for rows that bring their own names."""
    census = Census()
    for name in names:
        census.add(name)
    return census.entries
