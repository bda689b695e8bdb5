"""Files that travel with the package: sample pictures for verify, class names."""

from __future__ import annotations

from pathlib import Path


def sample_pictures() -> tuple[Path, ...]:
    """Four small photographs, sorted by name; sources and licenses are in `pictures/README.md`."""
    folder = Path(__file__).parent / "pictures"
    return tuple(sorted(path for path in folder.iterdir() if path.suffix in (".jpg", ".png")))
