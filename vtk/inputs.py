"""Which pictures a job covers, in which order, and under which name the results of each one go.

`vtk.scan` says what an input may be.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vtk.errors import InputError
from vtk.items import Items
from vtk.scan import Scan
from vtk.sources.base import Source
from vtk.sources.options import DEFAULT_OPTIONS, InputOptions
from vtk.sources.reader import Reader
from vtk.walk import Walker


@dataclass(frozen=True)
class Plan:
    """All pictures of a job, and what was passed over: suffix → count, hidden names, names given twice.

    root: absolute path of the deepest folder that all inputs share; file names are relative to it.
    sources: files that hold pictures, to which items refer by number.
    """

    root: str
    items: Items
    ignored: Mapping[str, int]
    hidden: int
    duplicates: int
    sources: tuple[Source, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the root and the ordered file names: equal plans have equal digests."""
        digest = hashlib.sha256(os.fsencode(self.root) + b"\0")
        for name in self.items.file_names:
            digest.update(os.fsencode(name) + b"\0")
        for source in self.sources:
            digest.update(source.identity.encode() + b"\0")
        return digest.hexdigest()

    def files(self) -> Iterator[str]:
        """Every file that is read, as the user would open it: pictures, and sources of pictures."""
        yield from (item.path for item in self.items if item.source is None)
        yield from (source.path for source in self.sources)

    def open_reader(self) -> Reader:
        """What reads the pictures of the items; to be closed."""
        return Reader(self.sources)


def expand(inputs: Sequence[str], *, exclude: Path | None = None, options: InputOptions = DEFAULT_OPTIONS) -> Plan:
    """The plan for folders, files, sources (archives, tables, videos), patterns, lists and URLs, see `vtk.scan`.

    `exclude` is a folder that is never walked (where the results go). Raises InputError for an input that does not
    exist and when nothing is found, UsageError for a URL that is not allowed, MissingDependencyError.
    """
    scan = Scan(Walker(exclude), options)
    for text in inputs:
        scan.add(text)
    return _plan(scan)


def _plan(scan: Scan) -> Plan:
    hidden = scan.hidden + scan.walker.hidden
    if not scan.found:
        others = ", ".join(f"{count} × {suffix}" for suffix, count in sorted(scan.ignored.items()))
        raise InputError(
            f"No pictures found. Other files: {others or 'none'}; hidden names: {hidden}.",
            hint="Patterns name files ('photos/**' walks a folder, '*.tar' enters archives); a list file takes names "
            "with any suffix.",
        )
    root = os.path.commonpath(scan.roots)
    items = Items(scan.found, root)
    return Plan(root, items, dict(scan.ignored), hidden, scan.duplicates + items.num_dropped, scan.all_sources())
