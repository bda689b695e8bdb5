"""Whether a Matroska or WebM file is whole: its head states no number of frames, but its size (RFC 8794, RFC 9559)."""

from __future__ import annotations

import io
from typing import BinaryIO

HEADER_ID = b"\x1a\x45\xdf\xa3"
SEGMENT_ID = b"\x18\x53\x80\x67"
HEAD_BYTES = 1 << 12


def is_cut(file: BinaryIO) -> bool:
    """Whether the file is shorter than it states; False where it states no size, as live recordings do."""
    end = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(HEAD_BYTES)
    header_end = _end_of(head, 0, HEADER_ID)
    segment_end = None if header_end is None else _end_of(head, header_end, SEGMENT_ID)
    return segment_end is not None and segment_end > end


def _end_of(head: bytes, start: int, element_id: bytes) -> int | None:
    """Where the element that begins at `start` ends, None for another one or one of unknown size."""
    at = start + len(element_id)
    if head[start:at] != element_id or len(head) < at + 8 or not head[at]:
        return None
    length = 9 - head[at].bit_length()
    unknown = (1 << 7 * length) - 1
    size = int.from_bytes(head[at : at + length], "big") & unknown
    return None if size == unknown else at + length + size
