"""Parts of a job that any number of machines can do without talking: which pictures belong to which."""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vtk.errors import UsageError
from vtk.items import Items, Part
from vtk.sources.video import VIDEO_SUFFIXES


@dataclass(frozen=True)
class Shard:
    """Part `number` (from 1) of `of`. Every picture is in exactly one part, decided by its name alone.

    The frames of a video stay together, so that it is decoded, and drawn on, in one part.
    """

    number: int
    of: int

    def holds(self, file_name: str) -> bool:
        """Whether this part has the picture of that name."""
        folder = PurePosixPath(file_name).parent
        name = str(folder) if folder.suffix.lower() in VIDEO_SUFFIXES else file_name
        digest = hashlib.sha256(os.fsencode(name)).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1

    def select(self, items: Items) -> Part:
        """Its pictures, which keep their place in the whole job as `index`."""
        return Part(items, array("Q", (place for place, name in enumerate(items.file_names) if self.holds(name))))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def shards_folder(out: Path) -> Path:
    """Where a job on a cluster keeps its shards, by number, until all are done and merged into `out`."""
    return out.with_name(f"{out.name}.shards")


def parse_shard(text: str) -> Shard:
    """`--shard`: "2/5" is the second of five. Raises UsageError for anything else."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    number, of = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= of:
        raise UsageError(
            f"--shard {text} names no part.", hint="Parts are 1/N to N/N: '--shard 2/5' is the second of five."
        )
    return Shard(number, of)
