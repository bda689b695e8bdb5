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
    """Counters in tokens. Re-admissions after preemption are kept apart: they say nothing about shared prompts."""

    queries: int = 0
    hits: int = 0
    resumed_queries: int = 0
    resumed_hits: int = 0


@dataclass(frozen=True)
class Miss:
    """Where a prompt left the closest prompt seen lately: token `index`, what that one had, what this one has.

    expected is None when the remembered prompt ended there, which is no divergence but a longer prompt.
    """

    index: int
    expected: int | None
    came: int


class PrefixCache(Protocol):
    """What the scheduler asks of a prefix cache."""

    stats: PrefixStats

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
        self._recent: deque[tuple[tuple[ExtraKey, ...], list[int]]] = deque(maxlen=REMEMBERED_PROMPTS)
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
        """Keep the prompt for `explain`."""
        self._recent.append((request.extra_keys, request.prompt))

    def explain(self, request: Request) -> Miss | None:
        """Why the prompt was not matched further: where it leaves the remembered prompt that it follows longest.

        None when no remembered prompt under the same keys shares a token, or one holds this prompt whole.
        """
        best = 0
        expected: int | None = None
        for keys, prompt in self._recent:
            if keys == request.extra_keys and prompt is not request.prompt:
                common = _common_prefix(prompt, request.prompt)
                if common == len(request.prompt):
                    return None
                if common > best:
                    best, expected = common, prompt[common] if common < len(prompt) else None
        return Miss(best, expected, request.prompt[best]) if best else None

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

    def match(self, request: Request) -> list[int]:
        return []

    def remaining(self, request: Request, num_blocks: int) -> list[bytes]:
        return []

    def publish(self, request: Request, num_tokens: int) -> None:
        pass


def _common_prefix(one: list[int], other: list[int]) -> int:
    limit = min(len(one), len(other))
    if one[:limit] == other[:limit]:
        return limit
    return next(i for i in range(limit) if one[i] != other[i])
