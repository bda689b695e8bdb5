"""The bytes of a source, on this machine or elsewhere, without holding them or a file open."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol


class Blob(Protocol):
    """One file. `path` is as the user names it. All methods raise OSError and may be called from several threads."""

    @property
    def path(self) -> str: ...

    def open(self) -> BinaryIO:
        """A new seekable stream."""

    def read_at(self, offset: int, size: int) -> bytes:
        """At most `size` bytes from `offset` on, fewer where the file ends."""


@dataclass(frozen=True)
class LocalBlob:
    """A file of this machine. It is opened for each read: that costs microseconds, and no number of shards too many."""

    path: str

    def open(self) -> BinaryIO:
        return Path(self.path).open("rb")

    def read_at(self, offset: int, size: int) -> bytes:
        with Path(self.path).open("rb", buffering=0) as stream:
            stream.seek(offset)
            parts = []
            while size > 0 and (part := stream.read(size)):  # one call gives at most 2 GiB, and signals may cut it
                parts.append(part)
                size -= len(part)
            return b"".join(parts)
