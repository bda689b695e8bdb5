"""Which pictures a job covers, in which order, and under which name the results of each one go.

Folders are walked recursively, linked folders once each. Inside folders and patterns only names with a picture suffix
count, and hidden names (a leading dot) do not; what was passed over is counted in the plan. A file that is named
itself, directly or in a list, is always taken.
"""

from __future__ import annotations

import glob
import hashlib
import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtk.errors import InputError
from vtk.naming import output_names
from vtk.walk import Walker, files_matching, fixed_folder, is_folder

# Also formats that are not decoded here: such a picture ends in the ledger instead of being passed over.
PICTURE_SUFFIXES = frozenset(
    [
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".tif", ".tiff", ".bmp", ".dib", ".gif", ".avif"),
        *(".heic", ".heif", ".jp2", ".j2k", ".jxl", ".ppm", ".pgm", ".pbm", ".pnm"),
    ]
)
LIST_SUFFIX = ".txt"


@dataclass(frozen=True, slots=True)
class Item:
    """One picture of a job.

    index: place in the job, from 0. path: as the user would open it. file_name: unique path below the folder that all
    inputs share, with forward slashes. output: `file_name` as the stem of the files that the job writes for it.
    """

    index: int
    path: str
    file_name: str
    output: str


@dataclass(frozen=True)
class Plan:
    """All pictures of a job, and what was passed over: suffix → count, hidden names, names given twice.

    root: absolute path of the deepest folder that all inputs share; file names are relative to it.
    """

    root: str
    items: tuple[Item, ...]
    ignored: Mapping[str, int]
    hidden: int
    duplicates: int

    @property
    def digest(self) -> str:
        """SHA-256 of the root and the ordered file names: equal plans have equal digests."""
        digest = hashlib.sha256(os.fsencode(self.root) + b"\0")
        for item in self.items:
            digest.update(os.fsencode(item.file_name) + b"\0")
        return digest.hexdigest()


def expand(inputs: Sequence[str], *, exclude: Path | None = None) -> Plan:
    """The plan for folders, files, quoted patterns (`**` walks folders) and lists (`@FILE` or FILE.txt).

    A list holds one path per line, relative to the list's folder. `exclude` is a folder that is never walked (where
    the results go). Raises InputError for an input that does not exist and when nothing is found.
    """
    scan = _Scan(Walker(exclude))
    for text in inputs:
        scan.add(text)
    return scan.plan()


class _Scan:
    """Collects the files of all inputs in order, and the roots from which their names are taken."""

    def __init__(self, walker: Walker) -> None:
        self.walker = walker
        self.roots: list[str] = []
        self.files: dict[str, str] = {}
        self.ignored: Counter[str] = Counter()
        self.duplicates = 0

    def add(self, text: str) -> None:
        try:
            self._add(text)
        except OSError as error:
            raise InputError(f"{text} cannot be looked at: {error.strerror}.") from error

    def _add(self, text: str) -> None:
        if not text:
            raise InputError("An input is empty.", hint="Is a shell variable unset? '.' names the current folder.")
        path = Path(text)
        if text.startswith("@") and not os.path.lexists(text):
            self._take_list(Path(text[1:]))
        elif path.suffix.lower() == LIST_SUFFIX and path.is_file():
            self._take_list(path)
        elif path.is_dir():
            if path.resolve() == self.walker.exclude:
                raise InputError(f"{text} is also where the results shall go.", hint="Choose another -o.")
            self._take(path, self._pictures(self.walker.files(path)))
        elif os.path.lexists(text):
            self._take(path.parent, [path])
        elif glob.has_magic(text):
            self._take(fixed_folder(text), self._pictures(files_matching(text, self.walker)))
        else:
            raise InputError(f"No such file or folder: {text}.", hint="Quote patterns; @FILE names a list of paths.")

    def plan(self) -> Plan:
        if not self.files:
            others = ", ".join(f"{count} × {suffix}" for suffix, count in sorted(self.ignored.items()))
            raise InputError(
                f"No pictures found. Other files: {others or 'none'}; hidden names: {self.walker.hidden}.",
                hint="Patterns name files ('photos/**' walks a folder); a list file takes names with any suffix.",
            )
        root = os.path.commonpath(self.roots)
        names = [Path(os.path.relpath(path, root)).as_posix() for path in self.files]
        rows = enumerate(zip(self.files.values(), names, output_names(names), strict=True))
        items = tuple(Item(index, path, name, output) for index, (path, name, output) in rows)
        return Plan(root, items, dict(self.ignored), self.walker.hidden, self.duplicates)

    def _take(self, root: Path, paths: Iterable[Path]) -> None:
        """Keep `paths`, named from `root`; those elsewhere (absolute lines of a list) from their own folder."""
        top = _absolute(root)
        self.roots.append(top)
        for path in paths:
            absolute = _absolute(path)
            if absolute in self.files:
                self.duplicates += 1
                continue
            self.files[absolute] = str(path)
            if os.path.commonpath([top, absolute]) != top:
                self.roots.append(str(Path(absolute).parent))

    def _take_list(self, path: Path) -> None:
        self._take(path.parent, _listed(path))

    def _pictures(self, paths: Iterable[Path]) -> list[Path]:
        """Those with a picture suffix, and folders (they cannot be read), sorted part by part."""
        kept = []
        for path in paths:
            if path.suffix.lower() in PICTURE_SUFFIXES or is_folder(path, unknown=True):
                kept.append(path)
            else:
                self.ignored[path.suffix.lower() or "no suffix"] += 1
        return sorted(kept, key=lambda path: path.parts)


def _listed(path: Path) -> Iterator[Path]:
    try:
        lines = path.read_bytes().removeprefix(BOM_UTF8).splitlines()
    except OSError as error:
        raise InputError(f"The list {path} cannot be read: {error.strerror}.") from error
    return (path.parent / os.fsdecode(line) for line in lines if line.strip())


def _absolute(path: Path) -> str:
    """Absolute without following links: two names of one file are two pictures."""
    return os.path.normpath(path.absolute())
