"""Which pictures a job covers, in which order, and under which name the results of each one go.

Folders are walked recursively, linked folders once each. Inside folders and patterns only names with a picture suffix
count, and hidden names (a leading dot) do not; what was passed over is counted in the plan. A file that is named
itself, directly or in a list, is always taken. Files that hold pictures (archives, tables, videos: `vtk.sources`) are
entered when they are named themselves or by a pattern that ends in their suffix, not when a folder is walked.
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
from vtk.sources.base import Listing, Source
from vtk.sources.blob import LocalBlob
from vtk.sources.braces import expand_braces
from vtk.sources.kinds import is_source, list_source
from vtk.sources.names import PICTURE_SUFFIXES, suffix_of
from vtk.sources.options import DEFAULT_OPTIONS, InputOptions
from vtk.sources.reader import Reader
from vtk.walk import Walker, files_matching, fixed_folder, is_folder

LIST_SUFFIX = ".txt"


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


@dataclass(frozen=True)
class Plan:
    """All pictures of a job, and what was passed over: suffix → count, hidden names, names given twice.

    root: absolute path of the deepest folder that all inputs share; file names are relative to it.
    sources: files that hold pictures, to which items refer by number.
    """

    root: str
    items: tuple[Item, ...]
    ignored: Mapping[str, int]
    hidden: int
    duplicates: int
    sources: tuple[Source, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the root and the ordered file names: equal plans have equal digests."""
        digest = hashlib.sha256(os.fsencode(self.root) + b"\0")
        for item in self.items:
            digest.update(os.fsencode(item.file_name) + b"\0")
        for source in self.sources:
            digest.update(source.identity.encode() + b"\0")
        return digest.hexdigest()

    def open_reader(self) -> Reader:
        """What reads the pictures of the items; to be closed."""
        return Reader(self.sources)


def expand(inputs: Sequence[str], *, exclude: Path | None = None, options: InputOptions = DEFAULT_OPTIONS) -> Plan:
    """The plan for folders, files, archives, quoted patterns (`**` walks folders) and lists (`@FILE` or FILE.txt).

    A list holds one path per line, relative to the list's folder. `exclude` is a folder that is never walked (where
    the results go). Raises InputError for an input that does not exist and when nothing is found.
    """
    scan = _Scan(Walker(exclude), options)
    for text in inputs:
        scan.add(text)
    return scan.plan()


@dataclass(frozen=True, slots=True)
class _Found:
    """What an item becomes once all are known: its path, and where it lies if that is no file."""

    path: str
    source: int | None = None
    position: int = 0


class _Scan:
    """Collects the pictures of all inputs in order, and the roots from which their names are taken."""

    def __init__(self, walker: Walker, options: InputOptions) -> None:
        self.walker = walker
        self.options = options
        self.roots: list[str] = []
        self.found: dict[str, _Found] = {}
        self.sources: dict[str, Source] = {}
        self.ignored: Counter[str] = Counter()
        self.hidden = 0
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
        elif len(names := expand_braces(text)) > 1:
            for name in names:
                self._add(name)
        elif glob.has_magic(text):
            found = self._pictures(files_matching(text, self.walker), sources=is_source(text))
            self._take(fixed_folder(text), found)
        else:
            raise InputError(f"No such file or folder: {text}.", hint="Quote patterns; @FILE names a list of paths.")

    def plan(self) -> Plan:
        hidden = self.hidden + self.walker.hidden
        if not self.found:
            others = ", ".join(f"{count} × {suffix}" for suffix, count in sorted(self.ignored.items()))
            raise InputError(
                f"No pictures found. Other files: {others or 'none'}; hidden names: {hidden}.",
                hint="Patterns name files ('photos/**' walks a folder, '*.tar' enters archives); a list file takes "
                "names with any suffix.",
            )
        root = os.path.commonpath(self.roots)
        names = [Path(os.path.relpath(path, root)).as_posix() for path in self.found]
        rows = enumerate(zip(self.found.values(), names, output_names(names), strict=True))
        items = (Item(i, it.path, name, output, it.source, it.position) for i, (it, name, output) in rows)
        sources = tuple(self.sources.values())
        return Plan(root, tuple(items), dict(self.ignored), hidden, self.duplicates, sources)

    def _take(self, root: Path, paths: Iterable[Path]) -> None:
        """Keep `paths`, named from `root`; those elsewhere (absolute lines of a list) from their own folder."""
        top = _absolute(root)
        self.roots.append(top)
        for path in paths:
            absolute = _absolute(path)
            if absolute in self.found or absolute in self.sources:
                self.duplicates += 1
                continue
            if is_source(path.name) and path.is_file():
                self._enter(absolute, list_source(LocalBlob(str(path)), self.options))
            else:
                self.found[absolute] = _Found(str(path))
            if os.path.commonpath([top, absolute]) != top:
                self.roots.append(str(Path(absolute).parent))

    def _enter(self, absolute: str, listing: Listing) -> None:
        """Keep the pictures of a source, named below it."""
        number = len(self.sources)
        self.sources[absolute] = listing.source
        self.ignored.update(listing.ignored)
        self.hidden += listing.hidden
        for position, entry in enumerate(listing.entries):
            path = f"{listing.source.path}/{entry.shown}" if entry.shown else listing.source.path
            self.found[f"{absolute}/{entry.name}".rstrip("/")] = _Found(path, number, position)

    def _take_list(self, path: Path) -> None:
        self._take(path.parent, _listed(path))

    def _pictures(self, paths: Iterable[Path], *, sources: bool = False) -> list[Path]:
        """Those with a picture suffix, and folders (they cannot be read), sorted part by part; `sources` if asked."""
        kept = []
        for path in paths:
            if (
                path.suffix.lower() in PICTURE_SUFFIXES
                or (sources and is_source(path.name))
                or is_folder(path, unknown=True)
            ):
                kept.append(path)
            else:
                self.ignored[suffix_of(path.name)] += 1
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
