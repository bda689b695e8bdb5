"""Paged attention and the store before it: values against float64, bits against every way to cut the same tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.kernels import cpu_library, cpu_ops, reference_ops
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.torch_cache import allocate_cache, kv_name

MAX_POSITIONS = 400
KV_DTYPES = (torch.float32, torch.float16, torch.int8)


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Model:
    """Random projections of `lengths[i]` tokens per sequence, and a poisoned cache with scattered blocks for them."""

    lengths: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    seed: int

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        total = sum(self.lengths)
        self.query = torch.randn(total, self.heads, self.head_dim)
        self.key = torch.randn(total, self.kv_heads, self.head_dim)
        self.value = torch.randn(total, self.kv_heads, self.head_dim)
        angles = torch.rand(MAX_POSITIONS, self.head_dim // 2) * 6
        self.cos, self.sin = angles.cos(), angles.sin()
        counts = [-(-length // self.block_size) for length in self.lengths]
        blocks = torch.randperm(sum(counts) * 3 + 5)
        self.num_blocks = len(blocks)
        self.tables = torch.full((len(self.lengths), max(counts)), -1, dtype=torch.int32)
        for i, count in enumerate(counts):
            start = sum(counts[:i])
            self.tables[i, :count] = blocks[start : start + count]

    def cache(self) -> LayerCache:
        cache = allocate_cache(self.num_blocks, self.kv_heads, self.block_size, self.head_dim, kv_name(self.dtype))
        for tensor in cache.tensors:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
        return cache

    def step(self, ops: Any, cache: LayerCache, spans: dict[int, tuple[int, int]], out: Any = None) -> torch.Tensor:
        """Rotate, store and attend tokens `spans[i]` of each sequence i; the three are slices of one projection."""
        starts = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        rows = torch.cat([torch.arange(starts[i] + a, starts[i] + b) for i, (a, b) in spans.items()])
        positions = torch.cat([torch.arange(a, b) for a, b in spans.values()])
        which = torch.cat([torch.full((b - a,), i) for i, (a, b) in spans.items()])
        fused = torch.cat([tensor[rows].flatten(1) for tensor in (self.query, self.key, self.value)], dim=1)
        sizes = [count * self.head_dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        query, key, value = (part.unflatten(1, (-1, self.head_dim)) for part in fused.split(sizes, dim=1))
        slots = self.tables[which, positions // self.block_size].long() * self.block_size + positions % self.block_size
        ops.rope_and_cache(query, key, value, self.cos, self.sin, positions, slots, cache)
        cu_seqlens = int32([0, *torch.tensor([b - a for a, b in spans.values()]).cumsum(0).tolist()])
        seq_lens, tables = int32([b for _, b in spans.values()]), self.tables[list(spans)].contiguous()
        result: torch.Tensor = ops.paged_attention(query, cache, cu_seqlens, seq_lens, tables, self.head_dim**-0.5, out)
        return result

    def expected(self, i: int) -> torch.Tensor:
        """Dense float64 attention of sequence i over the keys and values as the cache's type rounds them."""
        rows = slice(sum(self.lengths[:i]), sum(self.lengths[: i + 1]))
        count = self.lengths[i]
        cos, sin = (table[:count, None].double() for table in (self.cos, self.sin))
        query, key = (rotate(tensor[rows].double(), cos, sin) for tensor in (self.query, self.key))
        key, value = (rounded(tensor.float(), self.dtype) for tensor in (key, self.value[rows]))
        group = self.heads // self.kv_heads
        scores = torch.einsum("qhd,khd->hqk", query, key.repeat_interleave(group, 1)) * self.head_dim**-0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), value.repeat_interleave(group, 1))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype != torch.int8:
        return x.to(dtype).double()
    scale = x.abs().amax(-1, keepdim=True).double() / 127
    return (x.double() / scale).round() * scale


# A rotated key may fall on the other side of a rounding boundary than its float64 twin: one step of the type.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.int8: 4e-2}


@st.composite
def random_models(draw: st.DrawFn) -> Model:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    return Model(
        lengths=draw(st.lists(st.integers(1, 150), min_size=1, max_size=4)),
        heads=kv_heads * draw(st.sampled_from([1, 3, 7, 14])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 40, 64, 128, 256])),
        block_size=draw(st.sampled_from([1, 4, 16, 24, 32])),
        dtype=draw(st.sampled_from(KV_DTYPES)),
        seed=draw(st.integers(0, 1 << 30)),
    )


@settings(max_examples=40, deadline=None)
@given(model=random_models())
def test_attention_is_that_of_float64(isa: str, tensor_ops: Any, guarded: Callable[..., Any], model: Model) -> None:
    spans = {i: (0, length) for i, length in enumerate(model.lengths)}
    out = guarded(sum(model.lengths), model.heads, model.head_dim)
    result = model.step(tensor_ops, model.cache(), spans, out.tensor)
    expected = torch.cat([model.expected(i) for i in spans])
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=TOLERANCE[model.dtype])
    assert out.intact()


@settings(max_examples=20, deadline=None)
@given(model=random_models(), data=st.data())
def test_a_row_does_not_depend_on_cuts_and_company(
    isa: str, tensor_ops: Any, model: Model, data: st.DataObject
) -> None:
    """Bits: all at once, or in random chunks with random sequences beside each other."""
    whole = model.step(tensor_ops, model.cache(), {i: (0, length) for i, length in enumerate(model.lengths)})
    expected = list(whole.split(model.lengths))
    cache, done = model.cache(), [0] * len(model.lengths)
    while left := [i for i, length in enumerate(model.lengths) if done[i] < length]:
        chosen = data.draw(st.lists(st.sampled_from(left), min_size=1, unique=True))
        spans = {i: (done[i], data.draw(st.integers(done[i] + 1, model.lengths[i]))) for i in chosen}
        parts = model.step(tensor_ops, cache, spans).split([b - a for a, b in spans.values()])
        for part, (i, (start, stop)) in zip(parts, spans.items(), strict=True):
            assert torch.equal(part, expected[i][start:stop])
            done[i] = stop


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_threads_change_no_bit(isa: str, tensor_ops: Any, dtype: torch.dtype) -> None:
    model = Model([300, 1, 77, 130], 9, 3, 64, 16, dtype, 3)
    spans = {0: (0, 300), 1: (0, 1), 2: (0, 77), 3: (0, 130)}
    results = []
    for count in (1, 2, 5):
        cpu_library.set_num_threads(count)
        results.append(model.step(tensor_ops, model.cache(), spans))
    cpu_library.set_num_threads(2)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@settings(max_examples=25, deadline=None)
@given(model=random_models(), norm=st.booleans())
def test_the_store_writes_what_the_reference_writes(isa: str, tensor_ops: Any, model: Model, norm: bool) -> None:
    count, dim = model.lengths[0], model.head_dim
    positions = torch.randint(0, MAX_POSITIONS, (count,))
    slots = torch.randperm(model.num_blocks * model.block_size)[:count]
    slots[0] = -1
    norms = (torch.rand(dim), torch.rand(dim)) if norm else (None, None)
    seen = []
    for ops in (reference_ops, tensor_ops):
        query, key, value = (tensor[:count].clone() for tensor in (model.query, model.key, model.value))
        cache = model.cache()
        ops.rope_and_cache(query, key, value, model.cos, model.sin, positions, slots, cache, *norms)
        seen.append((query, key, cache))
    torch.testing.assert_close(seen[1][:2], seen[0][:2], rtol=1e-5, atol=2e-6)
    atol = 1 if model.dtype == torch.int8 else 2e-6
    for ours, theirs in zip(seen[1][2].tensors, seen[0][2].tensors, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=atol, equal_nan=True)
    assert torch.equal(seen[1][2].value.nan_to_num(), seen[0][2].value.nan_to_num())


def test_a_partial_rotation_leaves_the_rest(isa: str, tensor_ops: Any) -> None:
    model = Model([5], 2, 1, 32, 16, torch.float32, 1)
    query, key = model.query.clone(), model.key.clone()
    slots = torch.arange(5)
    cos, sin = model.cos[:, :4].contiguous(), model.sin[:, :4].contiguous()
    tensor_ops.rope_and_cache(query, key, model.value, cos, sin, torch.arange(5), slots, model.cache())
    assert torch.equal(query[..., 8:], model.query[..., 8:])
    expected = rotate(model.query[..., :8], cos[:5, None], sin[:5, None])
    torch.testing.assert_close(query[..., :8], expected)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_as_int8(isa: str, tensor_ops: Any, broken: float) -> None:
    """Else damaged weights would give answers instead of errors."""
    model = Model([40], 2, 1, 16, 16, torch.int8, 4)
    model.value[7, 0, 3] = broken
    result = model.step(tensor_ops, model.cache(), {0: (0, 40)})
    assert result[:7].isfinite().all()
    assert result[7:].isnan().all()


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7FFFFFFF, 0x7FA00155])
def test_a_score_that_is_no_number_leaves_none(isa: str, tensor_ops: Any, bits: int) -> None:
    """Whatever its lower bits are, which come from the file."""
    model = Model([48], 2, 1, 16, 16, torch.float32, 8)
    model.cos.fill_(1)
    model.sin.zero_()
    model.key.view(torch.int32)[15, 0, 3] = bits
    result = model.step(tensor_ops, model.cache(), {0: (0, 48)})
    assert result[:15].isfinite().all()
    assert result[15:].isnan().all()
    model.key.view(torch.int32)[:, 0, 3] = bits
    assert model.step(tensor_ops, model.cache(), {0: (0, 48)}).isnan().all()


def test_scores_that_overflow_weigh_nothing(isa: str, tensor_ops: Any) -> None:
    """Though all keys before have such scores."""
    model = Model([300], 2, 1, 16, 16, torch.float32, 6)
    model.cos.fill_(1)
    model.sin.zero_()
    model.query.abs_()
    model.key[:200] = -3e38
    result = model.step(tensor_ops, model.cache(), {0: (0, 300)})
    torch.testing.assert_close(result[200:].double(), model.expected(0)[200:], rtol=0, atol=1e-5)


def test_a_large_score_stays_finite(isa: str, tensor_ops: Any) -> None:
    model = Model([100], 2, 1, 16, 16, torch.float32, 5)
    model.query *= 3e3
    result = model.step(tensor_ops, model.cache(), {0: (0, 100)})
    torch.testing.assert_close(result.double(), model.expected(0), rtol=0, atol=2e-2)
    assert result.isfinite().all()


def test_no_sequences_and_no_new_rows(isa: str, tensor_ops: Any) -> None:
    model = Model([3], 2, 1, 16, 16, torch.float32, 1)
    empty = torch.empty(0, 2, 16)
    tables = torch.empty(0, 1, dtype=torch.int32)
    assert tensor_ops.paged_attention(empty, model.cache(), int32([0]), int32([]), tables, 1.0).shape == (0, 2, 16)
    out = tensor_ops.paged_attention(empty, model.cache(), int32([0, 0]), int32([3]), model.tables, 1.0)
    assert out.shape == (0, 2, 16)


def test_copied_blocks_attend_as_their_source(isa: str, tensor_ops: Any) -> None:
    for dtype in KV_DTYPES:
        model = Model([40], 3, 1, 16, 16, dtype, 9)
        cache = model.cache()
        first = model.step(tensor_ops, cache, {0: (0, 40)})
        free = [block for block in range(model.num_blocks) if block not in model.tables[0].tolist()][:3]
        tensor_ops.copy_blocks([cache], list(zip(model.tables[0].tolist(), free, strict=True)))
        model.tables[0] = int32(free)
        again = model.step(tensor_ops, cache, {0: (39, 40)})
        assert torch.equal(again[0], first[39])


def test_wrong_arguments_are_refused(isa: str, tensor_ops: Any) -> None:
    model = Model([3], 2, 1, 16, 16, torch.float32, 1)
    cache, cu_seqlens, seq_lens = model.cache(), int32([0, 3]), int32([3])
    with pytest.raises(ValueError, match="queries that fit the cache"):
        tensor_ops.paged_attention(torch.randn(3, 2, 8), cache, cu_seqlens, seq_lens, model.tables, 1.0)
    with pytest.raises(ValueError, match="contiguous int32"):
        tensor_ops.paged_attention(model.query, cache, cu_seqlens.long(), seq_lens, model.tables, 1.0)
    with pytest.raises(ValueError, match="keys and values"):
        tensor_ops.rope_and_cache(
            model.query, model.key[:2], model.value, model.cos, model.sin, torch.arange(3), torch.arange(3), cache
        )
    with pytest.raises(ValueError, match="KV cache holds"):
        kv_name(torch.float64)
    with pytest.raises(ValueError, match="KV cache holds float32, float16, int8; got fp8"):
        cpu_ops.allocate_cache(1, 1, 16, 16, "fp8")
