"""Paged attention on the device beside the reference in float64, and the join of two parts."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.merge_attention_states import reference as merge_reference
from vtk.kernels.merge_attention_states.cuda import merge_attention_states
from vtk.kernels.paged_attention import reference
from vtk.kernels.paged_attention.cuda import paged_attention

pytestmark = pytest.mark.gpu

# Relative to the largest value: the type rounds the weights and the result, by 2^-11 or 2^-8 each.
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}
KINDS = [
    (torch.float32, torch.float32),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16),
    (torch.bfloat16, torch.int8),
    (torch.bfloat16, torch.float8_e4m3fn),
]


@dataclass
class Step:
    """`counts[i]` new tokens of sequences of `lengths[i]`, in scattered blocks; what no one stored is NaN or 127."""

    counts: list[int]
    lengths: list[int]
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    kv: torch.dtype
    block_size: int = 16

    def __post_init__(self) -> None:
        needed = [-(-length // self.block_size) for length in self.lengths]
        order = torch.randperm(sum(needed) + 2)
        self.tables = torch.full((len(needed), max(needed) + 1), 1 << 30, dtype=torch.int32)
        occupied = torch.zeros(len(order), self.block_size, dtype=torch.bool)
        for i, count in enumerate(needed):
            table = order[sum(needed[:i]) : sum(needed[: i + 1])]
            self.tables[i, :count] = table
            position = torch.arange(self.lengths[i])
            occupied[table[position // self.block_size], position % self.block_size] = True
        key = self._stored(occupied[:, None, None, :], len(order), self.kv_heads, self.head_dim, self.block_size)
        value = self._stored(occupied[:, None, :, None], len(order), self.kv_heads, self.block_size, self.head_dim)
        scales = torch.rand(2, len(order), self.kv_heads, self.block_size) / 40 + 0.01
        scales.masked_fill_(~occupied[:, None, :], torch.nan)
        self.cache = LayerCache(key, value, *(scales if self.kv == torch.int8 else ()))
        self.query = torch.randn(sum(self.counts), self.heads, self.head_dim).to(self.dtype)
        self.bounds = torch.tensor([0, *self.counts]).cumsum(0).int()

    def _stored(self, occupied: torch.Tensor, *shape: int) -> torch.Tensor:
        if self.kv == torch.int8:
            return torch.randint(-127, 128, shape).masked_fill(~occupied, 127).to(torch.int8)
        return torch.randn(shape).masked_fill(~occupied, torch.nan).to(self.kv)

    def arguments(self, device: torch.device) -> tuple[Any, ...]:
        cache = LayerCache(*(tensor.to(device) for tensor in self.cache.tensors))
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        return cache, self.bounds.to(device), lengths.to(device), self.tables.to(device), self.head_dim**-0.5

    def gap(self, device: torch.device, **options: Any) -> float:
        """The largest gap to float64 of result and LSE, relative to the largest of each, infinite if one is NaN."""
        lse = torch.full(self.query.shape[:2], torch.nan, device=device)
        out = torch.full(self.query.shape, torch.nan, dtype=self.dtype, device=device)
        paged_attention(self.query.to(device), *self.arguments(device), out, lse=lse, **options)
        exact_lse = torch.empty(self.query.shape[:2]).double()
        arguments = self.arguments(torch.device("cpu"))
        exact = reference.paged_attention(self.query.double(), *arguments, lse=exact_lse, **options)
        return max(relative_gap(out, exact), relative_gap(lse, exact_lse))


def relative_gap(result: torch.Tensor, exact: torch.Tensor) -> float:
    gap = (result.cpu().double() - exact).abs().max() / exact.abs().max().clamp(min=1)
    return float(gap.nan_to_num(torch.inf))


def skip_without_float8(gpu: Any, kv: torch.dtype) -> None:
    if kv == torch.float8_e4m3fn and gpu.capability < 89:
        pytest.skip("float8 needs compute capability 8.9")


@pytest.mark.parametrize(("dtype", "kv"), KINDS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_it_is_the_reference(gpu: Any, dtype: torch.dtype, kv: torch.dtype, head_dim: int, phase: str) -> None:
    skip_without_float8(gpu, kv)
    lengths = gpu.pick([1, 700, 16, 257, 1025], [1, 20])
    counts = [1] * len(lengths) if phase == "decode" else [max(1, length * 2 // 3) for length in lengths]
    heads, kv_heads, head_dim = gpu.pick((8, 2, head_dim), (2, 1, 16))
    step = Step(counts, lengths, heads, kv_heads, head_dim, dtype, kv)
    assert step.gap(gpu.device) < TOLERANCE[dtype]


@pytest.mark.parametrize("options", [{"window": 33}, {"causal": False}])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (17, 1)])
def test_windows_and_groups(gpu: Any, options: dict[str, Any], heads: int, kv_heads: int) -> None:
    for counts in ([1, 1], gpu.pick([300, 90], [3, 2])):
        lengths = gpu.pick([500, 90], [20, 3])
        step = Step(counts, lengths, heads, kv_heads, gpu.pick(96, 16), torch.float16, torch.float16)
        assert step.gap(gpu.device, **options) < TOLERANCE[torch.float16]


def test_a_decoded_row_does_not_depend_on_its_company(gpu: Any) -> None:
    lengths = gpu.pick([900, 40, 260], [20, 3, 9])
    step = Step([1] * 3, lengths, 4, 2, gpu.pick(64, 16), torch.float16, torch.float16)
    cache, _, sizes, tables, scale = step.arguments(gpu.device)
    query = step.query.to(gpu.device)
    together = paged_attention(query, cache, step.bounds.to(gpu.device), sizes, tables, scale)
    for row in range(3):
        bounds = torch.tensor([0, 1], dtype=torch.int32, device=gpu.device)
        alone = paged_attention(query[row : row + 1], cache, bounds, sizes[row : row + 1], tables[row : row + 1], scale)
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [40, 128])
def test_merge_attention_states(gpu: Any, dtype: torch.dtype, head_dim: int) -> None:
    """A third of the parts saw no key: they hold NaN and are not read."""
    rows, heads, head_dim = gpu.pick((70, 8, head_dim), (3, 2, 16))
    states = [torch.randn(rows, heads, head_dim).to(dtype) for _ in range(2)]
    sums = [torch.randn(rows, heads) * 30 for _ in range(2)]
    for state, lse in zip(states, sums, strict=True):
        unseen = torch.rand(rows, heads) < 1 / 3
        state[unseen], lse[unseen] = torch.nan, -torch.inf
    exact_lse, lse = torch.empty(rows, heads).double(), torch.full((rows, heads), torch.nan, device=gpu.device)
    exact = merge_reference.merge_attention_states(
        states[0].double(), sums[0].double(), states[1].double(), sums[1].double(), lse=exact_lse
    )
    a, a_lse, b, b_lse = (part.to(gpu.device) for part in (states[0], sums[0], states[1], sums[1]))
    result = merge_attention_states(a, a_lse, b, b_lse, torch.full_like(a, torch.nan), lse)
    assert relative_gap(result, exact) < TOLERANCE[dtype]
    torch.testing.assert_close(lse.cpu().double(), exact_lse, rtol=2e-6, atol=2e-6)
