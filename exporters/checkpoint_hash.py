"""The hash of a file. Apart from the tensor digest, since bundles are checked where torch is not installed."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 22


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
