"""What was used last is kept, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class CacheStats:
    """hits and misses so far; entries and bytes now."""

    hits: int = 0
    misses: int = 0
    entries: int = 0
    bytes: int = 0


class ByteLru(Generic[K, V]):
    """A cache that holds at most `max_bytes`, as `size_of` counts them. Thread-safe; values must not be changed."""

    def __init__(self, max_bytes: int, size_of: Callable[[V], int]) -> None:
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0
        self._bytes = 0

    @property
    def stats(self) -> CacheStats:
        """Totals."""
        with self._lock:
            return CacheStats(self._hits, self._misses, len(self._entries), self._bytes)

    def get(self, key: K) -> V | None:
        """The value, which then is the last one to go, or None."""
        with self._lock:
            if key not in self._entries:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V) -> None:
        """Keep a value, in place of those used longest ago; one that is larger than the cache is not kept."""
        size = self._size_of(value)
        with self._lock:
            if size > self._max_bytes or key in self._entries:
                return
            self._entries[key] = value, size
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed
