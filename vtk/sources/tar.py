"""Tar archives (.tar, .tar.gz), among them WebDataset shards: read in place, nothing is extracted.

Members keep the names and the order that they have in the archive; as in folders, a picture is told by its suffix. The
row of a picture holds `key`, WebDataset's `__key__`, which the other members of its sample share. A damaged place
becomes one entry of its own, and what follows it is found by looking for the next header.
"""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO

from vtk.errors import ImageError
from vtk.naming import utf8
from vtk.sources.base import Damage, Extent, Listing, OpenSource, Picture, broken, check_size, encoded
from vtk.sources.blob import Blob
from vtk.sources.gzip_stream import GzipStream
from vtk.sources.names import Census, key_of

if TYPE_CHECKING:
    from typing_extensions import Self

BLOCK = tarfile.BLOCKSIZE
# Archives are filled up to whole records: of 10 KiB by default, and rarely of more than one MiB.
MAX_PADDING = 1 << 22
LOOK_BYTES = 1 << 20
MAX_BYTES = 1 << 62
LINK = Damage("unsupported", "The member is a link to another one: put the picture itself into the archive.")
SPARSE = Damage("unsupported", "The member is stored as a sparse file: archive it without --sparse.")


@dataclass(frozen=True)
class TarSource:
    """A listed archive. places: where each picture lies in the decompressed archive, or why it cannot be read."""

    blob: Blob
    zipped: bool
    places: tuple[Extent | Damage, ...]
    keys: tuple[str, ...]

    @property
    def path(self) -> str:
        return self.blob.path

    @property
    def identity(self) -> str:
        return "tar"

    def open(self) -> OpenSource:
        return _OpenTar(self)


class _OpenTar:
    """Plain archives are read by any number of threads at once; a gzip stream has one position, hence one reader."""

    def __init__(self, source: TarSource) -> None:
        self.source = source
        self._stream = GzipStream(source.blob) if source.zipped else None
        self._lock = threading.Lock()

    def read(self, position: int) -> Picture:
        place = self.source.places[position]
        if isinstance(place, Damage):
            raise place.error()
        check_size(place.size)
        data = self._bytes(place)
        if len(data) < place.size:
            raise ImageError("truncated", "The archive ends before this member does.")
        return encoded(data, {"key": self.source.keys[position]})

    def _bytes(self, place: Extent) -> bytes:
        if self._stream is None:
            return self.source.blob.read_at(place.offset, place.size)
        with self._lock:
            self._stream.seek(place.offset)
            return self._stream.read(place.size)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()


def list_tar(blob: Blob, *, zipped: bool) -> Listing:
    """The pictures of an archive. Reads its headers only, or all of it if it is compressed."""
    census = Census()
    places: list[Extent | Damage] = []
    stream: BinaryIO | GzipStream
    try:
        stream = GzipStream(blob) if zipped else blob.open()
    except OSError as error:
        return broken(blob.path, "unreadable", f"The archive cannot be read: {error.strerror or error}.")
    with closing(stream):
        for name, place in _members(stream):
            if isinstance(place, Damage) or census.wants(name):
                census.add(name)
                places.append(place)
    keys = tuple(utf8(key_of(entry.shown)) for entry in census.entries)
    source = TarSource(blob, zipped, tuple(places), keys)
    return Listing(source, census.entries, dict(census.ignored), census.hidden)


def _members(stream: IO[bytes] | GzipStream) -> Iterator[tuple[str, Extent | Damage]]:
    """Files and links of the archive in order, and an entry for each damaged place."""
    end = 0
    try:
        archive = _Headers(stream)
        while True:
            found = archive.following()
            damaged = _damaged(stream, end, None if found is None else found.offset)
            if damaged:
                yield f"damaged-at-{end}", Damage("corrupt", f"The archive is damaged from byte {end} on.")
            if found is None:
                break
            end = archive.end
            if not found.isdir():
                yield found.name, _place(found)
        if not damaged and (archive.cut or not _is_marked(stream, end)):
            yield "cut-off", Damage("truncated", f"The archive has no end: what came after byte {end} is lost.")
    except OSError as error:
        yield "cut-off", Damage("corrupt", f"The archive cannot be read on after byte {end}: {error}.")


def _place(member: tarfile.TarInfo) -> Extent | Damage:
    if member.issparse():
        return SPARSE
    return Extent(member.offset_data, member.size) if member.isreg() else LINK


def _damaged(stream: IO[bytes] | GzipStream, start: int, end: int | None) -> bool:
    """Whether something else than padding lies between two members or behind the last; no padding is that long."""
    if end is not None and end <= start:
        return False
    stream.seek(start)
    zeros = 0
    while part := stream.read(LOOK_BYTES if end is None else min(LOOK_BYTES, end - start - zeros)):
        if part.strip(b"\0"):
            return True
        zeros += len(part)
    return zeros > MAX_PADDING


def _is_marked(stream: IO[bytes] | GzipStream, end: int) -> bool:
    """Whether anything follows the last member, as the two empty blocks do that end an archive."""
    stream.seek(end)
    return bool(stream.read(1))


class _Header(tarfile.TarInfo):
    """A header that never leads back: tarfile follows a negative size to what it has read, again and again."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        """Raises TarError for what is no header, with the archive where that began."""
        start = archive.offset
        try:
            found = super().fromtarfile(archive)
        except (ValueError, OverflowError, RecursionError) as error:  # numbers that are none, headers of headers
            archive.offset = start
            raise tarfile.ReadError(str(error)) from error
        if found.size < 0 or not start < archive.offset <= MAX_BYTES:
            archive.offset = start
            raise tarfile.ReadError("a member of impossible size")
        return found


class _Headers:
    """The headers of an archive one by one; after a damaged one the search goes on with the next block."""

    def __init__(self, stream: IO[bytes] | GzipStream) -> None:
        self.cut = False
        self.end = 0
        self._stream = stream
        self._archive: tarfile.TarFile | None = None

    def following(self) -> tarfile.TarInfo | None:
        while True:
            try:
                return self._next()
            except tarfile.TarError:  # noqa: PERF203
                # The last member's data, or a header that belongs to another one, is not all there.
                if self._archive is None or not self._skip_block(self._archive):
                    self.cut = True
                    return None

    def _next(self) -> tarfile.TarInfo | None:
        if self._archive is None:
            stream: IO[bytes] = self._stream  # type: ignore[assignment]  # it reads and seeks, which is all that is used
            self._archive = tarfile.open(  # noqa: SIM115
                fileobj=stream,
                mode="r:",
                ignore_zeros=True,
                encoding="utf-8",
                errors="surrogateescape",
                tarinfo=_Header,
            )
        found = self._archive.next()
        self._archive.members = []  # type: ignore[attr-defined]  # it would keep every header
        self.end = self._archive.offset
        return found

    def _skip_block(self, archive: tarfile.TarFile) -> bool:
        archive.offset += BLOCK
        self._stream.seek(archive.offset, io.SEEK_SET)
        return bool(self._stream.read(1))
