"""Rotation, norm and store in the interpreter, beside the reference in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError

from vtk.kernels import reference_ops
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.rope_and_cache import cuda

pytestmark = pytest.mark.usefixtures("interpreted")

NUM_BLOCKS, BLOCK_SIZE = 5, 4
POISON = 72  # of unused slots: float8 has it too
CACHES = {
    torch.float32: (torch.float32, torch.int8, torch.float16),
    torch.float16: (torch.float16, torch.int8),
    torch.bfloat16: (torch.bfloat16, torch.int8, torch.float8_e4m3fn),
}
PAIRS = [(dtype, cached) for dtype, kinds in CACHES.items() for cached in kinds]


@dataclass
class Inputs:
    """Queries, keys and values as slices of one projection, a row of it longer than what is used."""

    qkv: Any
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    heads: tuple[int, int, int]

    def run(self, function: Callable[..., None], qkv: torch.Tensor, cache: LayerCache) -> None:
        query, key, value = torch.split(qkv, self.heads, dim=1)
        tables = (
            (self.cos.to(torch.float64), self.sin.to(torch.float64))
            if qkv.dtype == torch.float64
            else (self.cos, self.sin)
        )
        function(query, key, value, *tables, self.positions, self.slots, cache, self.query_norm, self.key_norm, 1e-5)


def make(
    buffer: Callable[..., Any],
    dtype: torch.dtype,
    rows: int,
    heads: tuple[int, int],
    head_dim: int,
    half: int,
    norms: bool,
) -> Inputs:
    sizes = (heads[0] * heads[1], heads[1], heads[1])
    qkv = buffer(rows, sum(sizes), head_dim, dtype=dtype, gap=8)
    qkv.tensor.copy_(torch.randn(qkv.tensor.shape))
    angles = torch.rand(30, half) * 6
    slots = torch.randperm(NUM_BLOCKS * BLOCK_SIZE)[:rows]
    slots[torch.rand(rows) < 0.3] = -1
    weights = [torch.randn(head_dim) for _ in range(2)] if norms else [None, None]
    return Inputs(qkv, angles.cos(), angles.sin(), torch.randint(30, (rows,)), slots, weights[0], weights[1], sizes)


def poisoned(kv_heads: int, head_dim: int, dtype: torch.dtype, scale_dtype: torch.dtype = torch.float32) -> LayerCache:
    shape = (NUM_BLOCKS, kv_heads, BLOCK_SIZE)
    key, value = torch.empty(*shape[:2], head_dim, BLOCK_SIZE, dtype=dtype), torch.empty(*shape, head_dim, dtype=dtype)
    key.fill_(POISON)
    value.fill_(POISON)
    scales = (
        [torch.full(shape, torch.nan, dtype=scale_dtype) for _ in range(2)] if dtype == torch.int8 else [None, None]
    )
    return LayerCache(key, value, *scales)


def check_int8(result: LayerCache, exact: LayerCache) -> None:
    """Scales as the reference's; a value may differ by one where it lies between two within float32's error."""
    for ours, theirs in ((result.key_scales, exact.key_scales), (result.value_scales, exact.value_scales)):
        assert ours is not None
        assert theirs is not None
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-6, atol=0, equal_nan=True)
    for values, others in ((result.key, exact.key), (result.value, exact.value)):
        distance = (values.int() - others.int()).abs()
        assert distance.max() <= 1
        assert (distance > 0).float().mean() < 0.02


def check(inputs: Inputs, cached: torch.dtype, module: Any = cuda) -> None:
    tensor, kv_heads, head_dim = inputs.qkv.tensor, inputs.heads[1], inputs.qkv.tensor.shape[2]
    exact_qkv = tensor.double()
    exact = poisoned(kv_heads, head_dim, torch.int8 if cached == torch.int8 else torch.float64, torch.float64)
    inputs.run(reference_ops.rope_and_cache, exact_qkv, exact)
    result = poisoned(kv_heads, head_dim, cached)
    inputs.run(module.rope_and_cache, tensor, result)
    tolerance = torch.finfo(tensor.dtype).eps / 2 + 2e-6
    torch.testing.assert_close(tensor.double(), exact_qkv, rtol=tolerance, atol=3e-6)
    assert inputs.qkv.intact()
    if cached == torch.int8:
        check_int8(result, exact)
        return
    tolerance, least = torch.finfo(cached).eps / 2 + 2e-6, max(3e-6, torch.finfo(cached).smallest_normal / 8)
    for ours, theirs in ((result.key, exact.key), (result.value, exact.value)):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=least)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    types=st.sampled_from(PAIRS), rows=st.integers(0, 4), group=st.integers(1, 3), kv_heads=st.integers(1, 2),
    dims=st.sampled_from([(8, 4), (12, 6), (20, 6), (16, 2), (64, 32), (7, 3)]), norms=st.booleans(),
    seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_it_agrees_with_the_reference(
    buffer: Callable[..., Any], types: tuple[torch.dtype, torch.dtype], rows: int, group: int, kv_heads: int,
    dims: tuple[int, int], norms: bool, seed: int,
) -> None:  # fmt: skip
    """Any grouping, any head size, tables that turn all or part of it; a negative slot stores nothing."""
    torch.manual_seed(seed)
    check(make(buffer, types[0], rows, (group, kv_heads), dims[0], dims[1], norms), types[1])


def test_zeros_are_stored_as_zeros(buffer: Callable[..., Any]) -> None:
    inputs = make(buffer, torch.float32, 1, (1, 1), 8, 4, False)
    inputs.qkv.tensor.zero_()
    inputs.slots = torch.tensor([3])
    cache = poisoned(1, 8, torch.int8)
    inputs.run(cuda.rope_and_cache, inputs.qkv.tensor, cache)
    assert cache.key[0, 0, :, 3].tolist() == [0] * 8
    assert cache.key_scales is not None
    assert cache.key_scales[0, 0, 3] == 0


@pytest.mark.parametrize("broken", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_stays_none_as_int8(buffer: Callable[..., Any], broken: float) -> None:
    """Else damaged weights would give answers instead of errors."""
    inputs = make(buffer, torch.float32, 2, (1, 1), 8, 4, False)
    inputs.slots = torch.tensor([3, 6])
    inputs.qkv.tensor[0, 1:, 5] = broken
    cache = poisoned(1, 8, torch.int8)
    inputs.run(cuda.rope_and_cache, inputs.qkv.tensor, cache)
    for scales in (cache.key_scales, cache.value_scales):
        assert scales is not None
        assert not scales[0, 0, 3].isfinite()
        assert scales[1, 0, 2].isfinite()


def test_blocks_beyond_two_thousand_million_elements(buffer: Callable[..., Any]) -> None:
    """Memory that is reserved, not touched: only the pages of the last block are."""
    num_blocks = (1 << 31) // (64 * 16) + 2
    key = torch.empty(num_blocks, 1, 64, 16, dtype=torch.float8_e4m3fn)
    cache = LayerCache(key, torch.empty(num_blocks, 1, 16, 64, dtype=torch.float8_e4m3fn))
    inputs = make(buffer, torch.float32, 1, (1, 1), 64, 32, False)
    inputs.slots = torch.tensor([num_blocks * 16 - 1])
    inputs.run(cuda.rope_and_cache, inputs.qkv.tensor, cache)
    _, key, value = inputs.qkv.tensor[0]
    assert torch.equal(cache.key[-1, 0, :, -1].float(), key.to(torch.float8_e4m3fn).float())
    assert torch.equal(cache.value[-1, 0, -1].float(), value.to(torch.float8_e4m3fn).float())


@pytest.mark.parametrize(
    "change", [{"key": (2, 3, 8)}, {"value": (3, 2, 8)}, {"query": (2, 4, 16)}], ids=["heads", "rows", "head_dim"]
)
def test_shapes_that_do_not_fit_are_refused(change: dict[str, tuple[int, ...]]) -> None:
    shapes = {"query": (2, 4, 8), "key": (2, 2, 8), "value": (2, 2, 8)} | change
    tensors = [torch.zeros(shapes[name]) for name in ("query", "key", "value")]
    tables, slots = torch.zeros(9, 4), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected"):
        cuda.rope_and_cache(*tensors, tables, tables, slots, slots, poisoned(2, 8, torch.float32))


MUTATIONS = [
    ("- second * sin", "+ second * sin"),
    ("pair + HALF * column", "2 * pair + column"),
    ("tl.load(positions + token) * HALF", "tl.load(positions + token) * (HALF + 1)"),
    ("tl.sum(value * value) / D", "tl.sum(value * value) / HALF"),
    ("place * BLOCK_SIZE + offset", "place * BLOCK_SIZE"),
    ("slot // BLOCK_SIZE * KV_HEADS", "(slot + 1) // BLOCK_SIZE * KV_HEADS"),
    ("stored, offset = slot >= 0,", "stored, offset = slot >= -1,"),
    ("tl.div_rn(largest, 127.0), mask=stored", "tl.div_rn(largest, 128.0), mask=stored"),
    ("+ ROUNDING - ROUNDING", ""),
    ("largest = tl.max(tl.abs(value)", "largest = tl.max((value)"),
    ("head * query_head\n", "0 * query_head\n"),
    ("kv_head * key_head", "head * key_head"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), MUTATIONS)
def test_a_mutation_is_caught(
    mutated: Callable[[str, str, str], Any], buffer: Callable[..., Any], old: str, new: str
) -> None:
    def law(module: Any) -> None:
        torch.manual_seed(5)
        inputs = make(buffer, torch.float32, 4, (2, 2), 12, 4, True)
        inputs.slots = torch.tensor([3, -1, 7, 18])
        check(inputs, torch.int8, module)

    law(cuda)
    mutant = mutated(cuda.__name__, old, new)
    with pytest.raises((AssertionError, InterpreterError)):
        law(mutant)
