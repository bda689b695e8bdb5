"""Built engines and measured timings, kept between exports: building one can take minutes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vtk.bundle import file_sha256, write_json_atomic

MAX_BYTES = 20 << 30
_FACTS = ".json"
_PLAN = ".plan"
_TIMINGS = ".timing"


def default_root() -> Path | None:
    """`engines` in the user's cache folder for vtk; None for a user without a home."""
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return base / "vtk" / "engines"


def digest(parts: Mapping[str, Any]) -> str:
    """A key over everything that decides the bytes of an engine: weights, graph, builder, targets, flags."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class EngineCache:
    """A folder of engines by key, the oldest of which are dropped past `max_bytes`.

    An entry counts when its facts are there, which are written last, and its file still has the SHA-256 in them. A
    folder that cannot be written is a cache that keeps nothing.
    """

    def __init__(self, root: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.root = root
        self._max_bytes = max_bytes

    def take(self, key: str, destination: Path) -> Mapping[str, Any] | None:
        """Copy the engine to `destination` and return its facts, or None where there is none that is whole."""
        plan = self._path(key, _PLAN)
        try:
            facts: Mapping[str, Any] = json.loads(self._path(key, _FACTS).read_text(encoding="utf-8"))
            if file_sha256(plan) != facts["sha256"]:
                return None
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(plan, destination)
            os.utime(plan)
        except (OSError, ValueError, KeyError):
            return None
        return facts

    def put(self, key: str, plan: Path, facts: Mapping[str, Any]) -> None:
        """Keep a copy of `plan`; facts: JSON data, to which its SHA-256 is added."""
        with suppress(OSError):
            self.root.mkdir(parents=True, exist_ok=True)
            temporary = self._path(key, f".{os.getpid()}.tmp")
            shutil.copyfile(plan, temporary)
            temporary.replace(self._path(key, _PLAN))
            write_json_atomic(self._path(key, _FACTS), {**facts, "sha256": file_sha256(plan)})
            self._drop_oldest()

    def timings(self, key: str) -> bytes:
        """What an earlier build has measured; empty at first."""
        try:
            return self._path(key, _TIMINGS).read_bytes()
        except OSError:
            return b""

    def put_timings(self, key: str, data: bytes) -> None:
        """Keep what a build has measured."""
        with suppress(OSError):
            self.root.mkdir(parents=True, exist_ok=True)
            temporary = self._path(key, f".{os.getpid()}.tmp")
            temporary.write_bytes(data)
            temporary.replace(self._path(key, _TIMINGS))

    def _path(self, key: str, suffix: str) -> Path:
        return self.root / f"{key}{suffix}"

    def _drop_oldest(self) -> None:
        newest_first = sorted(self.root.glob(f"*{_PLAN}"), key=lambda path: path.stat().st_mtime, reverse=True)
        total = 0
        for index, plan in enumerate(newest_first):
            total += plan.stat().st_size
            if index and total > self._max_bytes:
                plan.with_suffix(_FACTS).unlink(missing_ok=True)
                plan.unlink()
