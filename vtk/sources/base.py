"""What every kind of source offers: a list of its pictures, and each of them on request."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vtk.errors import ImageError
from vtk.preprocess.decode import MAX_FILE_BYTES, DecodeOptions, decode, decode_reduced
from vtk.preprocess.resize import RGBImage


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture as read. content: the bytes of a picture file, or RGB uint8 (h, w, 3), upright (frames of a video).

    sha256: of those bytes, or of the pixels. extra: JSON values that its row shall also hold (`key`, `id`, `frame`, …).
    """

    content: bytes | RGBImage
    sha256: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def pixels(self, options: DecodeOptions) -> RGBImage:
        """RGB uint8 (h, w, 3), upright. Raises ImageError for bytes that are no picture."""
        return decode(self.content, options) if isinstance(self.content, bytes) else self.content

    def reduced(self, options: DecodeOptions) -> tuple[RGBImage, tuple[int, int]]:
        """As `pixels`, but perhaps smaller as `decode_reduced` says; and the size (h, w) of the whole picture."""
        if isinstance(self.content, bytes):
            return decode_reduced(self.content, options)
        return self.content, (self.content.shape[0], self.content.shape[1])


def encoded(data: bytes, extra: Mapping[str, Any] | None = None) -> Picture:
    """A picture of the bytes of its file."""
    return Picture(data, hashlib.sha256(data).hexdigest(), extra or {})


def frame(pixels: RGBImage, extra: Mapping[str, Any]) -> Picture:
    """A picture that was never a file of its own; `pixels` must be C-contiguous."""
    return Picture(pixels, hashlib.sha256(pixels.data).hexdigest(), extra)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the bytes of a picture lie in the file that holds it."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Damage:
    """What stands for pictures that cannot be read: why, as a ledger says it."""

    reason: str
    message: str

    def error(self) -> ImageError:
        return ImageError(self.reason, self.message)


@dataclass(frozen=True, slots=True)
class Entry:
    """One picture of a source. name: clean and unique path below it. shown: as the source itself calls it."""

    name: str
    shown: str


class OpenSource(Protocol):
    """A source being read. `read` may be called from several threads, and is fast for rising positions."""

    def read(self, position: int) -> Picture:
        """Picture number `position` of the listing. Raises ImageError; other pictures stay readable."""

    def close(self) -> None: ...


class Source(Protocol):
    """A listed source: a value that can be sent to another process and opened there. `path` is as the user names it."""

    @property
    def path(self) -> str: ...

    @property
    def identity(self) -> str:
        """What decides the pictures beside their names; a job goes on only with an equal one."""

    def open(self) -> OpenSource: ...


@dataclass(frozen=True)
class Listing:
    """The pictures of a source in order, and what was passed over: suffix → count, and hidden names."""

    source: Source
    entries: Sequence[Entry]
    ignored: Mapping[str, int] = field(default_factory=dict)
    hidden: int = 0


@dataclass(frozen=True)
class BrokenSource:
    """A source of which nothing can be listed. Its one entry ends in the ledger, and other sources go on."""

    path: str
    damage: Damage
    identity: str = "broken"

    def open(self) -> BrokenSource:
        return self

    def read(self, position: int) -> Picture:
        raise self.damage.error()

    def close(self) -> None:
        pass


def broken(path: str, reason: str, message: str) -> Listing:
    """The listing of a source that cannot be read at all: one entry that stands for the whole."""
    return Listing(BrokenSource(path, Damage(reason, message)), (Entry("", ""),))


def check_size(size: int) -> None:
    """Raise ImageError (too_large) for a member that is bigger than a picture file may be."""
    if size > MAX_FILE_BYTES:
        raise ImageError("too_large", f"The member has {size:,} bytes; the limit is {MAX_FILE_BYTES:,}.")
