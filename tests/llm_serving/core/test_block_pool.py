"""Which free block is used next."""

import pytest

from vtk.llm_serving.core.block_pool import BlockPool


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(6)


def test_a_block_that_was_used_comes_before_one_that_never_was(pool: BlockPool) -> None:
    """Memory that no block has used is not touched for the sake of an order."""
    for _ in range(20):
        blocks = pool.allocate(2)
        assert set(blocks) == {0, 1}
        pool.release(blocks)


def test_contents_are_kept_while_there_are_other_blocks(pool: BlockPool) -> None:
    first, second = pool.allocate(2)
    for index, content in ((first, b"a"), (second, b"b")):
        pool.publish(index, content)
    pool.release([first])
    pool.release([second])
    others = pool.allocate(4)
    assert not {first, second} & set(others)
    assert (pool.find(b"a"), pool.find(b"b")) == (first, second)
    assert pool.allocate(1) == [first], "the content unused longest is forgotten first"
    assert pool.num_evictions == 1
    pool.check_integrity([[first], others])


def test_forgotten_contents_are_blocks_like_any_other(pool: BlockPool) -> None:
    kept = pool.allocate(3)
    for index in kept:
        pool.publish(index, bytes([index]))
    pool.release(kept[1:])
    pool.forget_all()
    pool.check_integrity([kept[:1]])
    assert set(pool.allocate(2)) == set(kept[1:])
