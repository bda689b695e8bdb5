"""Hashes of files and of tensors. Apart from torch: bundles are checked, and language models served, without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BLOCK = 1 << 22


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def digest_tensors(tensors: Iterable[tuple[str, str, Sequence[int], Buffer]]) -> str:
    """SHA-256 over (name, dtype, shape, little-endian bytes in row-major order), which come sorted by name.

    dtype: as PyTorch calls it, such as `bfloat16`.
    """
    digest = hashlib.sha256()
    for name, dtype, shape, data in tensors:
        digest.update(f"{json.dumps([name, dtype, list(shape)])}\n".encode())
        digest.update(data)
    return digest.hexdigest()
