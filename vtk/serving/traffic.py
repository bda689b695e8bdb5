"""What is asked for most, to warm up with after a start: prompt prefixes that several requests share, picture sizes.

The profile is a small file for its owner only. It holds no prompt that was asked once, and at most `MAX_PREFIX_TOKENS`
token ids of a prefix. Without a path nothing is kept, neither in a file nor in memory.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_PREFIXES = 64
MAX_PREFIX_TOKENS = 1024
MIN_PREFIX_TOKENS = 32
MAX_SIZES = 32
MAX_FILE_BYTES = 4 << 20
HALF_LIFE = 24 * 3600.0
_SCHEMA_VERSION = 1
_log = logging.getLogger(__name__)

Numbers = npt.NDArray[np.int64]


@dataclass(eq=False)
class _Entry:
    """times: how often it was seen. score: the same, halved every `HALF_LIFE` seconds, as of `seen`."""

    model: str
    numbers: Numbers
    times: int
    score: float
    seen: float

    def score_at(self, now: float) -> float:
        return float(self.score * 0.5 ** (max(now - self.seen, 0.0) / HALF_LIFE))

    def see(self, now: float) -> None:
        self.score, self.times, self.seen = self.score_at(now) + 1, self.times + 1, now

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "numbers": self.numbers.tolist()}


class TrafficProfile:
    """Any thread may call. model: what identifies the model, so that its token ids mean the same: its tensor digest."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Read `path` if it is there. A file that cannot be read is told in the log, and the profile starts empty."""
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._prefixes: list[_Entry] = []
        self._sizes: list[_Entry] = []
        self._is_saved = True
        if path is not None and path.exists():
            self._read(path)

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self._path is not None

    def record_prompt(self, model: str, prompt: Sequence[int]) -> None:
        """Count the prefix that a prompt shares with an earlier one."""
        if self._path is None or len(prompt) < MIN_PREFIX_TOKENS:
            return
        tokens = np.asarray(prompt[:MAX_PREFIX_TOKENS], np.int64)
        with self._lock:
            now, self._is_saved = self._clock(), False
            for entry in self._prefixes:
                length = _shared_length(entry.numbers, tokens) if entry.model == model else 0
                # A prefix that shrank to the few tokens that every prompt begins with would warm up nothing.
                if length >= max(MIN_PREFIX_TOKENS, len(entry.numbers) // 2):
                    entry.numbers = tokens[:length]
                    return entry.see(now)
            _add(self._prefixes, _Entry(model, tokens, 1, 1.0, now), MAX_PREFIXES)

    def record_picture(self, model: str, width: int, height: int) -> None:
        """Count the size of a picture, in pixels."""
        if self._path is None:
            return
        with self._lock:
            now, self._is_saved = self._clock(), False
            for entry in self._sizes:
                if entry.model == model and (entry.numbers[0], entry.numbers[1]) == (width, height):
                    return entry.see(now)
            _add(self._sizes, _Entry(model, np.array([width, height], np.int64), 1, 1.0, now), MAX_SIZES)

    def prefixes(self, model: str) -> list[list[int]]:
        """Token ids of the prefixes that more than one request had, the most frequent recent one first."""
        with self._lock:
            return [entry.numbers.tolist() for entry in self._shared() if entry.model == model]

    def sizes(self, model: str) -> list[tuple[int, int]]:
        """(width, height) of the pictures, the most frequent recent one first."""
        with self._lock:
            entries = [entry for entry in self._ranked(self._sizes) if entry.model == model]
        return [(int(entry.numbers[0]), int(entry.numbers[1])) for entry in entries]

    def save(self) -> None:
        """Write what is new, atomically, readable by its owner only; a failure is told in the log."""
        if self._path is None or self._is_saved:
            return
        with self._lock:
            self._is_saved = True
            prefixes = [entry.to_json() for entry in self._shared()]
            sizes = [entry.to_json() for entry in self._ranked(self._sizes)]
        try:
            data = {"schema_version": _SCHEMA_VERSION, "prefixes": prefixes, "sizes": sizes}
            _write_private(self._path, json.dumps(data).encode())
        except OSError as error:
            _log.warning("the traffic profile %s was not written: %s", self._path, error)

    def _shared(self) -> list[_Entry]:
        return [entry for entry in self._ranked(self._prefixes) if entry.times > 1]

    def _ranked(self, entries: list[_Entry]) -> list[_Entry]:
        now = self._clock()
        return sorted(entries, key=lambda entry: -entry.score_at(now))

    def _read(self, path: Path) -> None:
        try:
            with path.open("rb") as stream:
                text = stream.read(MAX_FILE_BYTES + 1)
            if len(text) > MAX_FILE_BYTES:
                raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
            data = json.loads(text)
            if data["schema_version"] != _SCHEMA_VERSION:
                raise ValueError(f"it has schema version {data['schema_version']!r}, not {_SCHEMA_VERSION}")
            prefixes = [_entry_from_json(item, 1, MAX_PREFIX_TOKENS) for item in data["prefixes"][:MAX_PREFIXES]]
            sizes = [_entry_from_json(item, 2, 2) for item in data["sizes"][:MAX_SIZES]]
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.warning("the traffic profile %s is not used: %s: %s", path, type(error).__name__, error)
        else:
            self._prefixes, self._sizes = prefixes, sizes


def _shared_length(one: Numbers, other: Numbers) -> int:
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length


def _add(entries: list[_Entry], entry: _Entry, most: int) -> None:
    """In place of the least frequent one where there is no room."""
    if len(entries) >= most:
        entries.remove(min(entries, key=lambda item: item.score_at(entry.seen)))
    entries.append(entry)


def _entry_from_json(data: Any, at_least: int, at_most: int) -> _Entry:
    numbers = np.array(data["numbers"], np.int64)
    if numbers.ndim != 1 or not at_least <= len(numbers) <= at_most or numbers.min() < 0:
        raise ValueError(f"an entry should have {at_least} to {at_most} whole numbers")
    return _Entry(str(data["model"]), numbers, int(data["times"]), float(data["score"]), float(data["seen"]))


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
