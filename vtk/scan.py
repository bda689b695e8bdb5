"""What an input of a job may be, and which pictures each one stands for.

- a folder: walked recursively, linked folders once each; only names with a picture suffix count, and hidden names (a
  leading dot) do not; what was passed over is counted
- a quoted pattern (`*`, `?`, `[]`; `**` walks folders), or braces (`shards-{000..010}.tar`, `{a,b}.zip`)
- a list of paths or URLs, one per line: `@FILE`, or FILE.txt, relative to the list's folder; `-` for stdin
- a file itself, directly or in a list: always taken. One that holds pictures (`vtk.sources`) is entered, also where a
  pattern ends in its suffix, but not where a folder is walked
- a URL of a store: `s3://bucket/folder`, see `vtk.sources.remote`
"""

from __future__ import annotations

import glob
import os
import sys
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from vtk.errors import InputError
from vtk.sources.base import Listing, Source
from vtk.sources.blob import LocalBlob
from vtk.sources.braces import expand_braces
from vtk.sources.kinds import is_source, list_source
from vtk.sources.names import PICTURE_SUFFIXES, suffix_of
from vtk.sources.options import InputOptions
from vtk.sources.remote import RemoteBlob, RemoteFiles, is_url, list_url, place_of
from vtk.walk import Walker, files_matching, fixed_folder, is_folder

LIST_SUFFIX = ".txt"
STDIN = "-"
# The source of all single URLs has no place of its own.
URLS = ""


@dataclass(frozen=True, slots=True)
class Found:
    """What an item becomes once all are known: its path, and where it lies if that is no file."""

    path: str
    source: int | None = None
    position: int = 0


class Scan:
    """Collects the pictures of all inputs in order, and the roots from which their names are taken."""

    def __init__(self, walker: Walker, options: InputOptions) -> None:
        self.walker = walker
        self.options = options
        self.roots: dict[str, None] = {}
        self.found: dict[str, Found] = {}
        self.sources: dict[str, Source] = {}
        self.urls: list[RemoteBlob] = []
        self.urls_number = 0
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

    def all_sources(self) -> tuple[Source, ...]:
        """The sources by number."""
        urls = {URLS: RemoteFiles(tuple(self.urls))} if self.urls else {}
        return tuple({**self.sources, **urls}.values())

    def _take(self, root: Path, paths: Iterable[Path]) -> None:
        """Keep `paths`, named from `root`; those elsewhere (absolute lines of a list) from their own folder."""
        top = _absolute(root)
        self.roots[top] = None
        for path in paths:
            absolute = _absolute(path)
            if absolute in self.found or absolute in self.sources:
                self.duplicates += 1
                continue
            if is_source(path.name) and path.is_file():
                self._enter(absolute, list_source(LocalBlob(str(path)), self.options))
            else:
                self.found[absolute] = Found(str(path))
            if os.path.commonpath([top, absolute]) != top:
                self.roots[str(Path(absolute).parent)] = None

    def _enter(self, absolute: str, listing: Listing) -> None:
        """Keep the pictures of a source, named below it."""
        number = len(self.sources)
        self.sources[absolute] = listing.source
        self.ignored.update(listing.ignored)
        self.hidden += listing.hidden
        for position, entry in enumerate(listing.entries):
            path = f"{listing.source.path}/{entry.shown}" if entry.shown else listing.source.path
            self.found[f"{absolute}/{entry.name}".rstrip("/")] = Found(path, number, position)

    def _take_stdin(self) -> None:
        if sys.stdin is None:
            raise InputError("There is no stdin to read paths from.")
        self._take_lines(Path(), sys.stdin.buffer.read().split(b"\0" if self.options.null_separated else b"\n"))

    def _take_list(self, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"The list {path} cannot be read: {error.strerror}.") from error
        self._take_lines(path.parent, data.removeprefix(BOM_UTF8).splitlines())

    def _take_lines(self, folder: Path, lines: Iterable[bytes]) -> None:
        texts = (os.fsdecode(line.rstrip(b"\r")) for line in lines)
        for urls, group in groupby((text for text in texts if text.strip()), is_url):
            if urls:
                for url in group:
                    self._take_url(url)
            else:
                self._take(folder, (folder / text for text in group))

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
        if place in self.found or place in self.sources:
            self.duplicates += 1
        elif is_source(blob.path):
            self._enter(place, list_source(blob, self.options))
        else:
            if not self.urls:
                self.urls_number = len(self.sources)
                self.sources[URLS] = RemoteFiles()
            self.found[place] = Found(blob.path, self.urls_number, len(self.urls))
            self.urls.append(blob)

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


def _absolute(path: Path) -> str:
    """Absolute without following links: two names of one file are two pictures."""
    return os.path.normpath(path.absolute())
