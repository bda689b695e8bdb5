"""Fixed-size KV blocks: reference counts, free blocks in an order of reuse, and the index of blocks by content hash.

Laws (each is a test): free + used = all; a block is free exactly when nobody refers to it; a freed block keeps its
content and stays matchable until it is reused. Free blocks without a content are reused before those with one, whose
order is that of their last use: a content may save a prompt's computation, and the pool's size was granted. Of the
former the one freed last comes first, so that memory which no block has used yet stays untouched as long as it can.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass
class Block:
    """State of one block. `content` is the chained hash of the tokens it holds, once it is full and shareable."""

    ref_count: int = 0
    content: bytes | None = None


class BlockPool:
    """Owner of all blocks of one KV cache. Blocks are named by their index 0 … num_blocks-1."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self._blocks = [Block() for _ in range(num_blocks)]
        # Free blocks: without content, the next one last; with content, unused longest first.
        self._empty: OrderedDict[int, None] = OrderedDict.fromkeys(reversed(range(num_blocks)))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._by_content: dict[bytes, int] = {}
        self.num_evictions = 0

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def usage(self) -> float:
        """Share of blocks that somebody refers to, 0..1."""
        return 1 - self.num_free / self.num_blocks

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks and forget their content. The caller has checked `num_free`."""
        assert count <= self.num_free, "allocate more than is free"
        taken = [self._empty.popitem()[0] if self._empty else self._evict() for _ in range(count)]
        for index in taken:
            self._blocks[index].ref_count = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each block, taking it off the free ones where it was free."""
        for index in blocks:
            self._blocks[index].ref_count += 1
            self._empty.pop(index, None)
            self._cached.pop(index, None)

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each block of a sequence, given head first.

        The tail is freed first: its content is worth less than the head's, which more prompts share.
        """
        for index in reversed(blocks):
            block = self._blocks[index]
            assert block.ref_count > 0, f"block {index} released twice"
            block.ref_count -= 1
            if block.ref_count == 0:
                (self._empty if block.content is None else self._cached)[index] = None

    def is_shared(self, index: int) -> bool:
        """More than one sequence refers to the block: writing needs a copy first."""
        return self._blocks[index].ref_count > 1

    def is_free(self, index: int) -> bool:
        return self._blocks[index].ref_count == 0

    def num_freed(self, dropped: Mapping[int, int]) -> int:
        """How many blocks would be free if so many references to each were dropped."""
        return sum(self._blocks[index].ref_count == count for index, count in dropped.items())

    def publish(self, index: int, content: bytes) -> None:
        """Make a full block findable. The first block with a content keeps the name."""
        if self._blocks[index].content is None and content not in self._by_content:
            self._blocks[index].content = content
            self._by_content[content] = index

    def find(self, content: bytes) -> int | None:
        return self._by_content.get(content)

    def forget_all(self) -> None:
        """Drop the whole index; blocks in use stay valid for their owners."""
        for index in range(self.num_blocks):
            self._forget(index)
        self._empty.update(self._cached)
        self._cached.clear()

    def _evict(self) -> int:
        index, _ = self._cached.popitem(last=False)
        self._forget(index)
        return index

    def _forget(self, index: int) -> None:
        content = self._blocks[index].content
        if content is not None:
            del self._by_content[content]
            self._blocks[index].content = None
            self.num_evictions += 1

    def check_integrity(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raise AssertionError unless every law holds for exactly these live block tables."""
        refs = Counter(index for table in block_tables for index in table)
        for index, block in enumerate(self._blocks):
            assert block.ref_count == refs[index], f"block {index}: ref {block.ref_count}, in {refs[index]} tables"
            kept = block.content is not None
            assert (index in self._empty) == (block.ref_count == 0 and not kept), f"block {index}: free list disagrees"
            assert (index in self._cached) == (block.ref_count == 0 and kept), f"block {index}: cached list disagrees"
            if block.content is not None:
                assert self._by_content.get(block.content) == index, f"block {index}: not found by its content"
        assert len(self._by_content) == sum(block.content is not None for block in self._blocks)
