"""A gzip file as a seekable stream: going back restarts at a saved state instead of at the beginning."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from typing import Any

from vtk.sources.blob import Blob

READ_BYTES = 1 << 18
CHUNK_BYTES = 1 << 18
MARK_BYTES = 1 << 22
# A saved state takes some 50 KB. Beyond this number every second one is dropped and the spacing doubles.
MAX_MARKS = 512
# Deflate reaches 1032:1; archives of pictures stay near 1:1. A bomb is refused once it is also large.
MAX_RATIO = 200
FREE_BYTES = 1 << 30
GZIP_FORMAT = 31


@dataclass(frozen=True)
class _Mark:
    """Where the decompressor stood: bytes given out, bytes taken in, and its state."""

    position: int
    consumed: int
    inflater: Any


class GzipStream(io.RawIOBase):
    """Decompressed bytes of a blob; one thread at a time. Raises OSError for data that is damaged, cut or a bomb."""

    def __init__(self, blob: Blob) -> None:
        self._file = blob.open()
        self._spacing = MARK_BYTES
        self._marks = [_Mark(0, 0, zlib.decompressobj(GZIP_FORMAT))]
        self._position = 0
        self._restore(self._marks[0])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end of a gzip file is not known before it is read")
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """As of a buffered stream: fewer than `size` bytes only at the end."""
        parts: list[bytes] = []
        left = size if size is not None and size >= 0 else 1 << 62
        while left > 0 and self._reach():
            first = self._position - self._start
            part = self._chunk[first : first + left]
            parts.append(part)
            left -= len(part)
            self._position += len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _reach(self) -> bool:
        """Make the chunk hold the current position; False at the end."""
        if self._position < self._start:
            self._restore(max((m for m in self._marks if m.position <= self._position), key=lambda m: m.position))
        while self._position >= self._start + len(self._chunk):
            if not self._advance():
                return False
        return True

    def _restore(self, mark: _Mark) -> None:
        self._file.seek(mark.consumed)
        self._consumed = mark.consumed
        self._inflater = mark.inflater.copy()
        self._start, self._chunk = mark.position, b""

    def _advance(self) -> bool:
        """Decompress the next chunk; False at the end."""
        self._start += len(self._chunk)
        self._chunk = b""
        self._save()
        while not self._chunk:
            if self._inflater.eof:
                rest = (self._inflater.unused_data or self._take()).lstrip(b"\0")
                if not rest:
                    return False
                self._inflater = zlib.decompressobj(GZIP_FORMAT)
            else:
                rest = self._inflater.unconsumed_tail or self._take()
            try:
                self._chunk = self._inflater.decompress(rest, CHUNK_BYTES)
            except zlib.error as error:
                raise OSError(f"the gzip data is damaged ({error})") from error
            if not rest and not self._chunk and not self._inflater.eof:
                raise OSError("the gzip data ends early")
        if self._start > max(FREE_BYTES, MAX_RATIO * self._consumed):
            raise OSError(f"the gzip data grows more than {MAX_RATIO}-fold: it is taken for a bomb")
        return True

    def _take(self) -> bytes:
        data = self._file.read(READ_BYTES)
        self._consumed += len(data)
        return data

    def _save(self) -> None:
        if self._start < self._marks[-1].position + self._spacing:
            return
        self._marks.append(_Mark(self._start, self._consumed, self._inflater.copy()))
        if len(self._marks) > MAX_MARKS:
            del self._marks[1::2]
            self._spacing *= 2
