"""Prefix reuse: chained content hashes of full blocks, and an account of every hit and miss.

The hash of a block covers its parent's hash, its tokens and the extra keys that start in it, each length-prefixed and
tagged, under SHA-256: equal hashes mean equal KV, across tenants too (CVE-2025-46570 is about schemes where not).
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.request import ExtraKey, Request

ROOT = b"\x00" * 32
REMEMBERED_PROMPTS = 64
REMEMBERED_TOKENS = 4096


def hash_block(parent: bytes, tokens: list[int], keys: tuple[ExtraKey, ...] = ()) -> bytes:
    """SHA-256 of one full block given the hash of the block before it."""
    digest = hashlib.sha256(parent)
    digest.update(array("q", tokens).tobytes())
    for key in keys:
        for field in (key.kind.encode(), key.value.encode()):
            digest.update(struct.pack("<q", len(field)) + field)
        digest.update(struct.pack("<q", key.start))
    return digest.digest()


@dataclass
class PrefixStats:
    """Counters in tokens. Re-admissions after preemption are kept apart: they say nothing about shared prompts.

    shared_hits: those of the hits that a live request was holding too (in-flight sharing, n > 1); the others were left
    by requests that had ended. bypassed: prompt tokens that were to be computed whatever the cache holds.
    """

    queries: int = 0
    hits: int = 0
    shared_hits: int = 0
    resumed_queries: int = 0
    resumed_hits: int = 0
    bypassed: int = 0

    def add(self, request: Request, hits: int, shared_hits: int) -> None:
        """Count an admission before the request has its `num_cached`."""
        if request.num_cached is not None:
            self.resumed_queries += request.num_tokens
            self.resumed_hits += hits
        elif request.reuse_prefix:
            self.queries += request.num_tokens
            self.hits += hits
            self.shared_hits += shared_hits
        else:
            self.bypassed += request.num_tokens


@dataclass(frozen=True)
class SeenPrompt:
    """A prompt as it was admitted: its first REMEMBERED_TOKENS tokens, its length, how much of it was cached."""

    request_id: str
    keys: tuple[ExtraKey, ...]
    tokens: list[int]
    length: int
    num_cached: int


class PrefixCache(Protocol):
    """What the scheduler asks of a prefix cache."""

    stats: PrefixStats

    def remember(self, request: Request) -> None:
        """Keep the prompt of a request just admitted for `recent`."""
        ...

    def recent(self) -> tuple[SeenPrompt, ...]:
        """The last REMEMBERED_PROMPTS prompts that could have been matched, oldest first. Any thread may ask."""
        ...

    def match(self, request: Request) -> list[int]:
        """The blocks that already hold the longest known prefix of the request, at least one token left to compute."""
        ...

    def remaining(self, request: Request, num_blocks: int) -> list[bytes]:
        """Contents of the blocks that could be matched, beyond the first `num_blocks`."""
        ...

    def publish(self, request: Request, num_tokens: int) -> None:
        """Make the blocks findable that the tokens from `num_computed` to `num_tokens` fill."""
        ...


class BlockPrefixCache:
    """Prefix cache over the blocks of a pool; holds no KV of its own."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._recent: deque[SeenPrompt] = deque(maxlen=REMEMBERED_PROMPTS)
        self.stats = PrefixStats()

    def match(self, request: Request) -> list[int]:
        found = []
        for content in self._hashes(request, self._num_matchable(request)):
            block = self._pool.find(content)
            if block is None:
                break
            found.append(block)
        return found

    def remaining(self, request: Request, num_blocks: int) -> list[bytes]:
        return self._hashes(request, self._num_matchable(request))[num_blocks:]

    def publish(self, request: Request, num_tokens: int) -> None:
        full = num_tokens // self._block_size
        hashes = self._hashes(request, full)
        for index in range(request.num_computed // self._block_size, full):
            self._pool.publish(request.block_table[index], hashes[index])

    def remember(self, request: Request) -> None:
        # Siblings have their parent's prompt; a prompt that is computed whole on purpose missed nothing.
        if request.fork_of is None and request.reuse_prefix:
            name, prompt = request.request_id, request.prompt
            seen = SeenPrompt(
                name, request.extra_keys, prompt[:REMEMBERED_TOKENS], len(prompt), request.num_cached or 0
            )
            self._recent.append(seen)

    def recent(self) -> tuple[SeenPrompt, ...]:
        return tuple(self._recent)

    def _num_matchable(self, request: Request) -> int:
        """Full blocks of known tokens, short of the last token: its logits must be computed."""
        if not request.reuse_prefix:
            return 0
        return (request.num_tokens - 1) // self._block_size

    def _hashes(self, request: Request, count: int) -> list[bytes]:
        """The first `count` chained hashes, kept on the request since known tokens never change."""
        size = self._block_size
        while len(request.block_hashes) < count:
            start = len(request.block_hashes) * size
            parent = request.block_hashes[-1] if request.block_hashes else ROOT
            keys = tuple(key for key in request.extra_keys if start <= key.start < start + size)
            request.block_hashes.append(hash_block(parent, request.tokens(start, start + size), keys))
        return request.block_hashes[:count]


class NoPrefixCache:
    """Caching switched off: nothing is ever found."""

    def __init__(self) -> None:
        self.stats = PrefixStats()

    def remember(self, request: Request) -> None:
        pass

    def recent(self) -> tuple[SeenPrompt, ...]:
        return ()

    def match(self, request: Request) -> list[int]:
        return []

    def remaining(self, request: Request, num_blocks: int) -> list[bytes]:
        return []

    def publish(self, request: Request, num_tokens: int) -> None:
        pass
