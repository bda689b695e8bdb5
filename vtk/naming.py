"""Names of the files that a job writes for its pictures: unique, mirrored, and short enough for the file system."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

MAX_NAME_BYTES = 255
LONGEST_SUFFIX = 4
DIGEST_LENGTH = 16


def output_names(file_names: Sequence[str]) -> list[str]:
    """One name per file name (relative, forward slashes), to which a format adds its suffix.

    The suffix of the picture is dropped, as the tools of the field expect, unless another picture of the folder has the
    same stem: `a.jpg` and `a.png` keep theirs. Letter case does not tell two stems apart. A last part that would not
    fit into 255 bytes is cut and ends in a digest of the whole.
    """
    paths = [PurePosixPath(name) for name in file_names]
    stems = Counter((path.parent, path.stem.casefold()) for path in paths)
    full = {(path.parent, path.name.casefold()) for path in paths}

    def name_of(path: PurePosixPath) -> str:
        key = (path.parent, path.stem.casefold())
        # A stem of dots only would be a folder's own name.
        unique = stems[key] == 1 and key not in full and path.stem.strip(".")
        return (path.parent / _shortened(path.stem if unique else path.name)).as_posix()

    return [name_of(path) for path in paths]


def full_output_name(file_name: str) -> str:
    """The name that keeps its suffix, so that it is unique whatever other pictures there are or will be."""
    path = PurePosixPath(file_name)
    return (path.parent / _shortened(path.name)).as_posix()


def _shortened(name: str) -> str:
    encoded = os.fsencode(name)
    room = MAX_NAME_BYTES - LONGEST_SUFFIX
    if len(encoded) <= room:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:DIGEST_LENGTH]
    head = encoded[: room - DIGEST_LENGTH - 1].decode("utf-8", "ignore")
    return f"{head}~{digest}"


def utf8(path: str) -> str:
    """A path as text that any file format takes: bytes that are no UTF-8 are written as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def found_path(path: str) -> Path:
    """The file of a path as `utf8` wrote it: with its bytes as they were, unless the escaped name itself exists."""
    if "\\x" not in path or os.path.lexists(path):
        return Path(path)
    return Path(re.sub(r"\\x([89a-f][0-9a-f])", lambda match: os.fsdecode(bytes.fromhex(match[1])), path))
