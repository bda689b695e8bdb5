"""What an input of a job may be, and which pictures each one stands for.

- a folder: walked recursively, linked folders once each; only names with a picture suffix count, and hidden names (a
  leading dot) do not; what was passed over is counted
- a quoted pattern (`*`, `?`, `[]`; `**` walks folders), or braces (`shards-{000..010}.tar`, `{a,b}.zip`)
- a list of paths or URLs, one per line: `@FILE`, or FILE.txt, relative to the list's folder; `-` for stdin. A list that
  holds NUL bytes has one behind each path instead, as `find -print0` writes it: then names may hold line breaks
- a file itself, directly or in a list: always taken. One that holds pictures (`vtk.sources`) is entered, also where a
  pattern ends in its suffix, but not where a folder is walked
- a URL of a store: `s3://bucket/folder`, see `vtk.sources.remote`
"""

from __future__ import annotations

import glob
import os
import sys
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from vtk.errors import InputError
from vtk.items import FoundItems
from vtk.sources.base import Listing, Source
from vtk.sources.blob import LocalBlob
from vtk.sources.braces import expand_braces
from vtk.sources.kinds import is_source, list_source
from vtk.sources.names import PICTURE_SUFFIXES, suffix_of
from vtk.sources.options import InputOptions
from vtk.sources.remote import RemoteBlob, RemoteFiles, is_url, list_url, place_of
from vtk.walk import Walker, files_matching, fixed_folder, is_folder, joined

LIST_SUFFIX = ".txt"
STDIN = "-"
# The source of all single URLs has no place of its own.
URLS = ""
# No path holds it, and it comes before every other character: paths that have it between their parts sort part by part.
PART_END = "\0"


class Scan:
    """Collects the pictures of all inputs in order, and the roots from which their names are taken."""

    def __init__(self, walker: Walker, options: InputOptions) -> None:
        self.walker = walker
        self.options = options
        self.roots: dict[str, None] = {}
        self.found = FoundItems()
        self.sources: dict[str, Source] = {}
        self.urls: list[RemoteBlob] = []
        self.urls_number = 0
        self.ignored: Counter[str] = Counter()
        self.hidden = 0
        self.duplicates = 0
        self._folders: dict[str, str] = {}

    def add(self, text: str) -> None:
        try:
            self._add(text)
        except OSError as error:
            raise InputError(f"{text} cannot be looked at: {error.strerror}.") from error

    def _add(self, text: str) -> None:
        if not text:
            raise InputError("An input is empty.", hint="Is a shell variable unset? '.' names the current folder.")
        path = Path(text)
        if text == STDIN:
            self._take_stdin()
        elif is_url(text) and not os.path.lexists(text):
            self._take_url(text)
        elif text.startswith("@") and not os.path.lexists(text):
            self._take_list(Path(text[1:]))
        elif path.suffix.lower() == LIST_SUFFIX and path.is_file():
            self._take_list(path)
        elif path.is_dir():
            if path.resolve() == self.walker.exclude:
                raise InputError(f"{text} is also where the results shall go.", hint="Choose another -o.")
            self._take(path, self._pictures(self.walker.files(text)))
        elif os.path.lexists(text):
            self._take(path.parent, [str(path)])
        elif len(names := expand_braces(text)) > 1:
            for name in names:
                self._add(name)
        elif glob.has_magic(text):
            found = self._pictures(files_matching(text, self.walker), sources=is_source(text))
            self._take(fixed_folder(text), found)
        else:
            raise InputError(f"No such file or folder: {text}.", hint="Quote patterns; @FILE names a list of paths.")

    def all_sources(self) -> tuple[Source, ...]:
        """The sources by number."""
        urls = {URLS: RemoteFiles(tuple(self.urls))} if self.urls else {}
        return tuple({**self.sources, **urls}.values())

    def _take(self, root: Path, paths: Iterable[str]) -> None:
        """Keep `paths`, named from `root`; those elsewhere (absolute lines of a list) from their own folder."""
        top = os.path.normpath(root.absolute())
        self.roots[top] = None
        known = {top}
        for path in paths:
            absolute = self._absolute(path)
            if absolute in self.sources:
                self.duplicates += 1
                continue
            if is_source(path) and Path(path).is_file():
                self._enter(absolute, list_source(LocalBlob(path), self.options))
            else:
                self.found.add(path, absolute)
            folder = absolute.rpartition("/")[0]
            if folder not in known:
                known.add(folder)
                if os.path.commonpath([top, folder or "/"]) != top:
                    self.roots[folder or "/"] = None

    def _absolute(self, path: str) -> str:
        """Without following links: two names of one file are two pictures."""
        folder, slash, name = path.rpartition("/")
        if name in ("", ".", ".."):
            return os.path.abspath(path)  # noqa: PTH100
        if folder not in self._folders:
            self._folders[folder] = os.path.abspath(folder + slash).rstrip("/")  # noqa: PTH100
        return f"{self._folders[folder]}/{name}"

    def _enter(self, absolute: str, listing: Listing) -> None:
        """Keep the pictures of a source, named below it."""
        number = len(self.sources)
        self.sources[absolute] = listing.source
        self.ignored.update(listing.ignored)
        self.hidden += listing.hidden
        for position, entry in enumerate(listing.entries):
            path = f"{listing.source.path}/{entry.shown}" if entry.shown else listing.source.path
            self.found.add(path, f"{absolute}/{entry.name}".rstrip("/"), number, position)

    def _take_stdin(self) -> None:
        if sys.stdin is None:
            raise InputError("There is no stdin to read paths from.")
        self._take_listed(Path(), _listed(sys.stdin.buffer.read(), null=self.options.null_separated))

    def _take_list(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"The list {path} cannot be read: {error.strerror}.") from error
        if data.startswith((BOM_UTF16_BE, BOM_UTF16_LE)):
            raise InputError(f"The list {path} is UTF-16.", hint="Save it as UTF-8.")
        self._take_listed(path.parent, _listed(data, null=False))

    def _take_listed(self, folder: Path, names: Iterable[bytes]) -> None:
        for urls, group in groupby(map(os.fsdecode, names), is_url):
            if urls:
                for url in group:
                    self._take_url(url)
            else:
                self._take(folder, (_below(folder, text) for text in group))

    def _take_url(self, url: str) -> None:
        for name in expand_braces(url):
            listing = list_url(name, self.options)
            self.roots[listing.top] = None
            self.ignored.update(listing.ignored)
            self.hidden += listing.hidden
            for blob in listing.blobs:
                self._take_blob(blob)

    def _take_blob(self, blob: RemoteBlob) -> None:
        place = place_of(blob.path)
        if place in self.sources:
            self.duplicates += 1
        elif is_source(blob.path):
            self._enter(place, list_source(blob, self.options))
        else:
            if not self.urls:
                self.urls_number = len(self.sources)
                self.sources[URLS] = RemoteFiles()
            self.found.add(blob.path, place, self.urls_number, len(self.urls))
            self.urls.append(blob)

    def _pictures(self, paths: Iterable[str], *, sources: bool = False) -> Iterator[str]:
        """Those with a picture suffix, and folders (they cannot be read), sorted part by part; `sources` if asked."""
        kept = []
        for path in paths:
            suffix = suffix_of(path)
            if suffix in PICTURE_SUFFIXES or (sources and is_source(path)) or is_folder(Path(path), unknown=True):
                kept.append(path.replace("/", PART_END))
            else:
                self.ignored[suffix] += 1
        kept.sort()
        return (path.replace(PART_END, "/") for path in kept)


def _listed(data: bytes, *, null: bool) -> list[bytes]:
    """The paths of a list: behind each one a NUL, which no path can hold, or else an end of line, also of Windows."""
    data = data.removeprefix(BOM_UTF8)
    if null or b"\0" in data:
        return [name for name in data.split(b"\0") if name]
    return [line.removesuffix(b"\r") for line in data.split(b"\n") if line.strip()]


def _below(folder: Path, text: str) -> str:
    """As pathlib joins them, which keeps every part of every path that it has met in memory."""
    if "//" in text or "./" in text or text.endswith(("/", ".")):
        return str(folder / text)
    return text if text.startswith("/") else joined(str(folder)) + text
