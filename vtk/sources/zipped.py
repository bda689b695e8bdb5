"""ZIP archives, read in place: from any thread, without extracting and without trusting what the archive states."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass

from vtk.errors import ImageError
from vtk.sources.base import Listing, Picture, broken, check_size, encoded
from vtk.sources.blob import Blob
from vtk.sources.names import Census

LOCAL_HEADER = struct.Struct("<4s22xHH")
LOCAL_SIGNATURE = b"PK\3\4"
ENCRYPTED = 1
RAW_DEFLATE = -15
# A picture of one color packs 1000:1 as BMP; what is also large is taken for a bomb before it is unpacked.
MAX_RATIO = 200
FREE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Member:
    """What the directory of the archive says of one picture."""

    offset: int
    packed: int
    size: int
    crc: int
    method: int
    encrypted: bool


@dataclass(frozen=True)
class ZipSource:
    """A listed archive; it has no state, so it is also the open one."""

    blob: Blob
    members: tuple[Member, ...]

    @property
    def path(self) -> str:
        return self.blob.path

    @property
    def identity(self) -> str:
        return "zip"

    def open(self) -> ZipSource:
        return self

    def read(self, position: int) -> Picture:
        member = self.members[position]
        _check(member)
        data = _unpack(member, self._packed(member))
        if len(data) != member.size or zlib.crc32(data) != member.crc:
            raise ImageError("corrupt", "The member does not have the size and checksum that the archive states.")
        return encoded(data)

    def close(self) -> None:
        pass

    def _packed(self, member: Member) -> bytes:
        header = self.blob.read_at(member.offset, LOCAL_HEADER.size)
        if len(header) < LOCAL_HEADER.size or not header.startswith(LOCAL_SIGNATURE):
            raise ImageError("corrupt", "The archive has no member where its directory says.")
        _, name_size, extra_size = LOCAL_HEADER.unpack(header)
        data = self.blob.read_at(member.offset + LOCAL_HEADER.size + name_size + extra_size, member.packed)
        if len(data) < member.packed:
            raise ImageError("truncated", "The archive ends before this member does.")
        return data


def list_zip(blob: Blob) -> Listing:
    """The pictures of an archive, from the directory at its end."""
    census = Census()
    members = []
    try:
        with blob.open() as stream, zipfile.ZipFile(stream) as archive:
            for info in archive.infolist():
                if not info.filename.endswith("/") and census.wants(info.filename):  # is_dir() fails without a name
                    census.add(info.filename)
                    members.append(_member(info))
    except OSError as error:
        return broken(blob.path, "unreadable", f"The archive cannot be read: {error.strerror or error}.")
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        return broken(blob.path, "corrupt", f"The archive has no usable directory: {str(error).rstrip('.')}.")
    return Listing(ZipSource(blob, tuple(members)), census.entries, dict(census.ignored), census.hidden)


def _member(info: zipfile.ZipInfo) -> Member:
    encrypted = bool(info.flag_bits & ENCRYPTED)
    return Member(info.header_offset, info.compress_size, info.file_size, info.CRC, info.compress_type, encrypted)


def _check(member: Member) -> None:
    """Refuse what cannot or should not be unpacked, before anything is read."""
    if member.encrypted:
        raise ImageError("unsupported", "The member is encrypted.")
    if member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ImageError("unsupported", f"The member is packed by method {member.method}; 0 and 8 are read here.")
    check_size(max(member.size, member.packed))
    if member.size > max(FREE_BYTES, MAX_RATIO * member.packed):
        raise ImageError("too_large", f"The member unpacks {MAX_RATIO}-fold and is taken for a bomb.")


def _unpack(member: Member, packed: bytes) -> bytes:
    if member.method == zipfile.ZIP_STORED:
        return packed
    try:
        return zlib.decompressobj(RAW_DEFLATE).decompress(packed, member.size + 1)
    except zlib.error as error:
        raise ImageError("corrupt", f"The packed data is damaged: {error}.") from error
