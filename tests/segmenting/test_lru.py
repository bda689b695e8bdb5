"""The cache of features: bounded in bytes, and what was used last stays."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.segmenting.lru import ByteLru


def cache_of(max_bytes: int) -> ByteLru[str, bytes]:
    return ByteLru(max_bytes, len)


def test_the_one_used_longest_ago_goes_first() -> None:
    cache = cache_of(10)
    cache.put("a", b"xxxx")
    cache.put("b", b"yyyy")
    assert cache.get("a") == b"xxxx"
    cache.put("c", b"zzzz")
    assert cache.get("b") is None
    assert (cache.get("a"), cache.get("c")) == (b"xxxx", b"zzzz")
    assert cache.stats.bytes == 8
    assert cache.stats.entries == 2
    assert (cache.stats.hits, cache.stats.misses) == (3, 1)


def test_what_is_larger_than_the_cache_is_not_kept_and_drives_nothing_out() -> None:
    cache = cache_of(4)
    cache.put("a", b"xx")
    cache.put("b", b"yyyyy")
    assert cache.get("b") is None
    assert cache.get("a") == b"xx"


@pytest.mark.parametrize("max_bytes", [0, 1])
def test_a_cache_may_hold_nothing(max_bytes: int) -> None:
    cache = cache_of(max_bytes)
    cache.put("a", b"xx")
    assert cache.stats.entries == cache.stats.bytes == 0


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.booleans()), max_size=60))
def test_it_is_a_bounded_ordered_dictionary(steps: list[tuple[str, int, bool]]) -> None:
    cache, model = cache_of(20), OrderedDict[str, bytes]()
    for key, size, is_put in steps:
        if not is_put:
            expected = model.get(key)
            if expected is not None:
                model.move_to_end(key)
            assert cache.get(key) == expected
            continue
        cache.put(key, bytes(size))
        model.setdefault(key, bytes(size))
        while sum(map(len, model.values())) > 20:
            model.popitem(last=False)
        assert cache.stats.bytes == sum(map(len, model.values())) <= 20
        assert cache.stats.entries == len(model)
