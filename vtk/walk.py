"""Files below folders and patterns, each once, whatever the links between the folders."""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

ANY_DEPTH = "**"


class Walker:
    """Walks folders without the hidden names, which it counts, and without `exclude`."""

    def __init__(self, exclude: Path | None = None) -> None:
        self.exclude = exclude and exclude.resolve()
        self.hidden = 0

    def files(self, top: str) -> Iterator[str]:
        """All files below `top`, in no promised order; each real folder once, by its real place before a link to it.

        A folder that cannot be read is yielded itself, so that it fails as a picture and is told.
        """
        unreadable: list[str] = []
        pending, seen = deque([Path(top)]), set[Path]()
        while pending:
            walk = os.walk(pending.popleft(), onerror=lambda error: unreadable.append(str(Path(error.filename))))
            for place, folders, names in walk:
                here = Path(place)
                identity = here.resolve()
                if identity in seen or identity == self.exclude:
                    folders.clear()
                    continue
                seen.add(identity)
                folders[:] = self._visible(folders)
                pending.extend(here / name for name in folders if _is_link(here / name))
                prefix = joined(str(here))
                yield from (prefix + name for name in self._visible(names))
        yield from unreadable

    def _visible(self, names: list[str]) -> list[str]:
        shown = sorted(name for name in names if not name.startswith("."))
        self.hidden += len(names) - len(shown)
        return shown


def is_folder(path: Path, *, unknown: bool) -> bool:
    """`unknown` for a path that cannot be looked at: in a folder without the right to enter it, nothing can."""
    try:
        return path.is_dir()
    except OSError:
        return unknown


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        return False


def joined(folder: str) -> str:
    """What stands before the names of a folder, as pathlib joins them."""
    return "" if folder == "." else folder.rstrip("/") + "/"


def files_matching(pattern: str, walker: Walker) -> Iterator[str]:
    """Files that a pattern names; from its first `**` on, folders are walked."""
    parts = pattern.split("/")
    if ANY_DEPTH not in parts:
        found = map(Path, sorted(glob.glob(pattern)))  # noqa: PTH207
        yield from (str(path) for path in found if not is_folder(path, unknown=False))
        return
    deep = parts.index(ANY_DEPTH)
    for folder in sorted(glob.glob(str(_folder(parts[:deep])))):  # noqa: PTH207
        for path in walker.files(folder):
            if _fits(Path(path).relative_to(folder).parts, parts[deep:]):
                yield path


def fixed_folder(pattern: str) -> Path:
    """The folder above the first part of a pattern that has a wildcard."""
    parts = pattern.split("/")
    return _folder(parts[: next(index for index, part in enumerate(parts) if glob.has_magic(part))])


def _folder(parts: Sequence[str]) -> Path:
    return Path("/" if parts == [""] else "/".join(parts))


def _fits(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether path parts match pattern parts, where `**` stands for any number of folders."""
    if not patterns:
        return not parts
    if patterns[0] == ANY_DEPTH:
        rest = patterns[1:] or ["*"]
        return any(_fits(parts[start:], rest) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and _fits(parts[1:], patterns[1:])
