"""Block tables grow by what is asked, never write into a block that another table holds, and give everything back."""

from hypothesis import given
from hypothesis import strategies as st

from vtk.llm_serving.core.block_manager import BlockManager
from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.core.request import Request

SIZE = 4


def request(num_known: int = 100) -> Request:
    return Request("r", list(range(num_known)), max_tokens=1, arrival=0.0)


@given(num_blocks=st.integers(1, 12), chunks=st.lists(st.integers(1, 9), max_size=12), forked_after=st.integers(0, 12))
def test_tables_hold_what_they_were_asked_to_hold(num_blocks: int, chunks: list[int], forked_after: int) -> None:
    pool = BlockPool(num_blocks)
    manager = BlockManager(pool, SIZE)
    parent, child = request(), request()
    for index, count in enumerate(chunks):
        if index == forked_after:
            manager.share(child, parent.block_table)
        before, held = list(parent.block_table), list(child.block_table)
        wanted = -(-(parent.num_computed + count) // SIZE)
        written = parent.num_computed // SIZE
        copied = [block for block in before[written:] if block in held]
        assert manager.can_grow(parent, count) == (wanted - len(before) + len(copied) <= pool.num_free)
        if manager.can_grow(parent, count):
            copies = manager.grow(parent, count)
            parent.num_computed += count
            assert [source for source, _ in copies] == copied
            assert [target for _, target in copies] == (parent.block_table[written : written + 1] if copied else [])
            assert parent.block_table[:written] == before[:written]
            assert not set(parent.block_table[written:]) & set(held)
            assert len(parent.block_table) == wanted
        assert child.block_table == held
        pool.check_integrity([parent.block_table, child.block_table])
    manager.release(parent)
    pool.check_integrity([child.block_table])
    manager.release(child)
    assert pool.num_free == num_blocks


def test_what_a_request_still_takes_is_counted_in_blocks() -> None:
    manager = BlockManager(BlockPool(8), SIZE)
    asked = request(num_known=9)
    assert manager.num_missing(asked) == 3
    manager.grow(asked, 5)
    assert manager.num_missing(asked) == 1
    assert [manager.num_blocks_for(count) for count in (0, 1, SIZE, SIZE + 1)] == [0, 1, 1, 2]
