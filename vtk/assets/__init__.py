"""Files that travel with the package: sample pictures for verify, the byte pairs of CLIP's tokenizer."""

from __future__ import annotations

import gzip
from pathlib import Path


def sample_pictures() -> tuple[Path, ...]:
    """Four small photographs, sorted by name; sources and licenses are in `pictures/README.md`."""
    folder = Path(__file__).parent / "pictures"
    return tuple(sorted(path for path in folder.iterdir() if path.suffix in (".jpg", ".png")))


def clip_merges() -> str:
    """The text of CLIP's `merges.txt`; source and license are in `clip/README.md`."""
    return gzip.decompress((Path(__file__).parent / "clip" / "merges.txt.gz").read_bytes()).decode("utf-8")
