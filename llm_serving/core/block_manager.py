"""Which blocks hold the KV of which request: all that is ever done to a block table.

The pool counts references and the cache names contents; who gets memory, and who loses it, is the scheduler's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.request import Request


class BlockManager:
    """Block tables over one pool, for blocks of `block_size` tokens."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def num_missing(self, request: Request) -> int:
        """Blocks that its known tokens will still take."""
        return self.num_blocks_for(request.num_tokens) - len(request.block_table)

    def share(self, request: Request, blocks: Sequence[int]) -> None:
        """Begin a table with blocks that are in use elsewhere, or were."""
        self._pool.share(blocks)
        request.block_table = list(blocks)

    def can_grow(self, request: Request, count: int) -> bool:
        """There is room for `count` more tokens."""
        copied = self._first_if_shared(request) is not None
        return self._num_new_blocks(request, count) + copied <= self._pool.num_free

    def grow(self, request: Request, count: int) -> list[tuple[int, int]]:
        """Blocks for `count` more tokens, which fit. Returns the copies (source, target) that must come before them.

        The first token's block is written to, so the table gets a private copy of it if others share it.
        """
        copies: list[tuple[int, int]] = []
        if (index := self._first_if_shared(request)) is not None:
            source, (target,) = request.block_table[index], self._pool.allocate(1)
            self._pool.release([source])
            request.block_table[index] = target
            copies.append((source, target))
        request.block_table += self._pool.allocate(self._num_new_blocks(request, count))
        return copies

    def release(self, request: Request) -> None:
        """Empty the table; blocks that nobody else holds become free."""
        self._pool.release(request.block_table)
        request.block_table = []

    def _num_new_blocks(self, request: Request, count: int) -> int:
        return self.num_blocks_for(request.num_computed + count) - len(request.block_table)

    def _first_if_shared(self, request: Request) -> int | None:
        """The place in the table of the block that the next token goes to, if others hold the block too."""
        index = request.num_computed // self._block_size
        shared = index < len(request.block_table) and self._pool.is_shared(request.block_table[index])
        return index if shared else None
