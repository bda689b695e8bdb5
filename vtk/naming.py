"""Names of the files that a job writes for its pictures: unique, mirrored, and short enough for the file system."""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]

MAX_NAME_BYTES = 255
LONGEST_SUFFIX = 4
DIGEST_LENGTH = 16


def stems_alone(file_names: Iterable[str]) -> BoolArray:
    """For each file name (relative, forward slashes), whether it may lose its suffix.

    It may, as the tools of the field expect, unless another picture of the folder has the same stem: `a.jpg` and
    `a.png` keep theirs. Letter case does not tell two stems apart. Needs 17 bytes per name: stems are compared by a
    digest of 64 bits, and of two that meet by chance both keep their suffix.
    """
    stems, names, usable = array("Q"), array("Q"), bytearray()
    for file_name in file_names:
        folder, stem, suffix = split_name(file_name)
        stems.append(_digest(folder, stem))
        names.append(_digest(folder, stem + suffix))
        usable.append(bool(stem.strip(".")))  # a stem of dots only would be a folder's own name
    keys = np.frombuffer(stems, np.uint64)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    alone: BoolArray = (counts[inverse] == 1) & ~np.isin(keys, np.frombuffer(names, np.uint64))
    return alone & np.frombuffer(usable, np.bool_)


def repeated(file_names: Sequence[str]) -> list[int]:
    """The places, rising, of the names that another place before them holds."""
    digests = np.frombuffer(array("Q", (_digest("", name) for name in file_names)), np.uint64)
    order = np.argsort(digests, kind="stable")
    is_like_last = digests[order[1:]] == digests[order[:-1]]
    again, known = list[int](), set[str]()
    for rank in np.flatnonzero(is_like_last):  # by rising digest: the names of one digest follow one another
        first = not rank or not is_like_last[rank - 1]
        known = {file_names[int(order[rank])]} if first else known
        name = file_names[int(order[rank + 1])]
        if name in known:
            again.append(int(order[rank + 1]))
        known.add(name)
    return sorted(again)


def output_name(file_name: str, *, alone: bool) -> str:
    """What a format adds its suffix to: without the suffix of the picture where that may go (`stems_alone`).

    A last part that would not fit into 255 bytes is cut and ends in a digest of the whole.
    """
    folder, stem, suffix = split_name(file_name)
    return folder + _shortened(stem if alone else stem + suffix)


def split_name(file_name: str) -> tuple[str, str, str]:
    """Folder with its slash, stem, and suffix with its dot, as pathlib has them."""
    folder, slash, last = file_name.rpartition("/")
    dot = last.rfind(".")
    if not 0 < dot < len(last) - 1:
        dot = len(last)
    return folder + slash, last[:dot], last[dot:]


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


def _digest(folder: str, name: str) -> int:
    """64 bits of a name, letter case apart, in its folder."""
    text = f"{folder}\0{name.casefold()}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def utf8(path: str) -> str:
    """A path as text that any file format takes: bytes that are no UTF-8 are written as \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def found_path(path: str) -> Path:
    """The file of a path as `utf8` wrote it: with its bytes as they were, unless the escaped name itself exists."""
    if "\\x" not in path or os.path.lexists(path):
        return Path(path)
    return Path(re.sub(r"\\x([89a-f][0-9a-f])", lambda match: os.fsdecode(bytes.fromhex(match[1])), path))
