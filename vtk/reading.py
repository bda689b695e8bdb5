"""The bytes of one picture file."""

from __future__ import annotations

import stat
from pathlib import Path

from vtk.errors import ImageError

MAX_FILE_BYTES = 1 << 30


def read_picture(path: str) -> bytes:
    """All bytes of a regular file. Raises ImageError: unreadable, or too_large above 1 GiB.

    Pipes and devices are refused before they are opened: reading one could wait forever.
    """
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("unreadable", "It is not a file but a folder, pipe or device.")
        if status.st_size > MAX_FILE_BYTES:
            raise ImageError("too_large", f"The file has {status.st_size} bytes; the limit is {MAX_FILE_BYTES}.")
        return Path(path).read_bytes()
    except OSError as error:
        raise ImageError("unreadable", f"It cannot be read: {error.strerror}.") from error
