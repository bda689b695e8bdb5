"""Paged attention in Triton, interpreted: values against float64, bits against company and tables, mutations."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.kernels.int8_rounding import round_to_int8
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.merge_attention_states.cuda import merge_attention_states
from vtk.kernels.paged_attention import cuda, cuda_kernels, reference

pytestmark = pytest.mark.usefixtures("interpreted")

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# Relative to the largest value: the type rounds the weights and the result, by 2^-11 or 2^-8 each.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Step:
    """`counts[i]` new tokens of sequences of `lengths[i]`, in scattered blocks; what no one stored is NaN or 127."""

    counts: list[int]
    lengths: list[int]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    kv: torch.dtype = torch.float32
    seed: int = 0
    scale: float = 0.25
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        needed = [-(-length // self.block_size) for length in self.lengths]
        blocks = torch.randperm(sum(needed) + 3)
        # The two entries behind a table are ids that no cache has.
        self.tables = torch.full((len(needed), max(needed, default=0) + 2), 1 << 30, dtype=torch.int32)
        self.cache = self._empty(len(blocks))
        for i, count in enumerate(needed):
            self.tables[i, :count] = blocks[sum(needed[:i]) : sum(needed[: i + 1])]
            self._store(self.tables[i].long(), self.lengths[i])
        # A slice of a wider projection, as the model has it.
        self.query = torch.randn(sum(self.counts), self.heads + 3, self.head_dim).to(self.dtype)[:, : self.heads]
        self.cu_seqlens = int32([0, *torch.tensor(self.counts).cumsum(0).tolist()])

    def _empty(self, num_blocks: int) -> LayerCache:
        poison = torch.nan if self.kv.is_floating_point else 127
        key = torch.full((num_blocks, self.kv_heads, self.head_dim, self.block_size), poison, dtype=self.kv)
        value = torch.full((num_blocks, self.kv_heads, self.block_size, self.head_dim), poison, dtype=self.kv)
        if self.kv.itemsize > 1:
            return LayerCache(key, value)
        scales = torch.full((2, num_blocks, self.kv_heads, self.block_size), torch.nan)
        return LayerCache(key, value, scales[0], scales[1])

    def _store(self, table: torch.Tensor, length: int) -> None:
        position = torch.arange(length)
        block, slot = table[position // self.block_size], position % self.block_size
        for name in ("key", "value"):
            tensor, scales = getattr(self.cache, name), getattr(self.cache, f"{name}_scales")
            fresh = torch.randn(length, self.kv_heads, self.head_dim) * 2
            if self.kv == torch.int8:
                fresh, scales[block, :, slot] = round_to_int8(fresh)
            elif scales is not None:
                scales[block, :, slot] = torch.rand(length, self.kv_heads) + 0.5
            stored = tensor.view(torch.uint8) if self.kv == torch.float8_e4m3fn else tensor
            fresh = fresh.to(self.kv)
            fresh = fresh.view(torch.uint8) if self.kv == torch.float8_e4m3fn else fresh
            if name == "key":
                stored[block, :, :, slot] = fresh
            else:
                stored[block, :, slot] = fresh

    def run(self, op: Any, query: torch.Tensor, **more: Any) -> torch.Tensor:
        arguments = (query, self.cache, self.cu_seqlens, int32(self.lengths), self.tables, self.scale)
        result: torch.Tensor = op(*arguments, **self.options, **more)
        return result

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        lse = torch.empty(self.query.shape[:2]).double()
        return self.run(reference.paged_attention, self.query.double(), lse=lse), lse

    def tolerance(self) -> float:
        """A weight is off by what its score was rounded by: units in the last place of the largest, as LSE has it."""
        largest = self.expected()[1].nan_to_num(0, 0, 0).abs().max() if self.query.numel() else 0.0
        return max(TOLERANCE[self.dtype], 2**-22 * float(largest))

    def difference(self, module: Any = cuda, **more: Any) -> float:
        """The largest gap to float64 of result and LSE, relative to the largest of each, infinite if one is NaN."""
        lse = torch.full(self.query.shape[:2], torch.nan)
        result = self.run(module.paged_attention, self.query, lse=lse, **more)
        return max(relative_gap(*pair) for pair in zip((result, lse), self.expected(), strict=True))


def relative_gap(result: torch.Tensor, expected: torch.Tensor) -> float:
    if not result.numel():
        return 0.0
    gap = (result.double() - expected).abs().max() / expected.abs().max().clamp(min=1)
    return float(gap.nan_to_num(torch.inf))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    kv_heads = draw(st.sampled_from([1, 2]))
    dtype = draw(st.sampled_from(FLOATS))
    lengths = draw(st.lists(st.integers(1, 80), min_size=1, max_size=3))
    decode = draw(st.booleans())
    options: dict[str, Any] = {"window": draw(st.sampled_from([None, 1, 7, 33])), "causal": draw(st.booleans())}
    if decode:
        options["split"] = draw(st.sampled_from([16, 64, 256]))
    return Step(
        counts=[1 if decode else draw(st.integers(0, length)) for length in lengths],
        lengths=lengths,
        heads=kv_heads * draw(st.sampled_from([1, 3, 4, 17])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([16, 24, 64, 128])),
        block_size=draw(st.sampled_from([1, 8, 16, 24, 64])),
        dtype=dtype,
        kv=draw(st.sampled_from([dtype, torch.int8, torch.float8_e4m3fn])),
        seed=draw(st.integers(0, 1 << 30)),
        options=options,
    )


@settings(max_examples=25, deadline=None)
@given(step=steps())
def test_it_is_the_reference_in_float64(step: Step) -> None:
    split = step.options.pop("split", None)
    assert step.difference(split=split) < step.tolerance()


@pytest.mark.parametrize("decode", [True, False])
def test_it_writes_its_rows_and_nothing_else(buffer: Callable[..., Any], decode: bool) -> None:
    step = Step(
        [1, 1, 1] if decode else [5, 0, 21], [5, 70, 21], heads=6, head_dim=24, dtype=torch.float16, kv=torch.float16
    )
    rows = len(step.query)
    out, lse = buffer(rows, 6, 24, dtype=torch.float16, gap=8), buffer(rows, 6, gap=2)
    step.run(cuda.paged_attention, step.query, out=out.tensor, lse=lse.tensor, split=32 if decode else None)
    expected, expected_lse = step.expected()
    torch.testing.assert_close(out.tensor.double(), expected, rtol=0, atol=2e-3)
    torch.testing.assert_close(lse.tensor.double(), expected_lse, rtol=0, atol=1e-5)
    assert out.intact()
    assert lse.intact()


@pytest.mark.parametrize("kv", [torch.float32, torch.int8])
def test_a_decoded_row_does_not_depend_on_company_and_table(kv: torch.dtype) -> None:
    step = Step([1] * 4, [3, 70, 150, 40], kv=kv, seed=3)
    together = step.run(cuda.paged_attention, step.query, split=32)
    for i in range(4):
        wide = torch.cat([step.tables[i : i + 1], torch.full((1, 40), -1, dtype=torch.int32)], dim=1)
        lengths = int32(step.lengths[i : i + 1])
        alone = cuda.paged_attention(step.query[i : i + 1], step.cache, int32([0, 1]), lengths, wide, 0.25, split=32)
        assert torch.equal(alone[0], together[i])


def test_rows_of_no_sequence_and_sequences_of_no_rows() -> None:
    step = Step([0, 2, 0], [4, 0, 9])
    lse = torch.full((2, 4), torch.nan)
    result = step.run(cuda.paged_attention, step.query, lse=lse)
    assert torch.equal(result, torch.zeros(2, 4, 16))
    assert (lse == -torch.inf).all()
    empty = Step([0], [5])
    assert empty.run(cuda.paged_attention, empty.query).shape == (0, 4, 16)


def test_more_sequences_than_one_search_takes() -> None:
    counts = [i % 3 for i in range(150)]
    assert Step(counts, [max(1, count) for count in counts], heads=1, kv_heads=1, seed=5).difference() < 3e-6


def test_scores_of_thousands_stay_finite() -> None:
    step = Step([1, 20], [90, 20], scale=3e3)
    assert step.difference(split=32) < 1e-3  # float32 holds such a score to about 2e-3


def last_block_of_many(module: Any) -> torch.Tensor:
    """The LSE of one position in the last block of a cache of 4.3 GB, of which few pages are touched."""
    key = torch.empty((1 << 24) + 1, 1, 16, 16, dtype=torch.int8)
    last = len(key) - 1
    key[0], key[last] = 0, 1
    value = torch.zeros(1, 1, 16, 16, dtype=torch.int8).expand(len(key), -1, -1, -1)
    scales = torch.ones(1, 1, 16).expand(len(key), -1, -1)
    lse = torch.empty(1, 1)
    cache = LayerCache(key, value, scales, scales)
    module.paged_attention(torch.ones(1, 1, 16), cache, int32([0, 1]), int32([1]), int32([[last]]), 1.0, lse=lse)
    return lse


@pytest.fixture
def mutated_attention(
    mutated: Callable[[str, str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], Any]:
    """The module `cuda` with one change of its own source, or of its kernels': `mutated_attention(old, new)`."""

    def mutate(old: str, new: str) -> Any:
        if old in inspect.getsource(cuda):
            return mutated(cuda.__name__, old, new)
        kernels = mutated(cuda_kernels.__name__, old, new)
        monkeypatch.setattr(cuda, "attend", kernels.attend)
        monkeypatch.setattr(cuda, "merge_splits", kernels.merge_splits)
        return cuda

    return mutate


def test_a_block_begins_beyond_32_bits_of_elements(mutated_attention: Callable[[str, str], Any]) -> None:
    torch.testing.assert_close(last_block_of_many(cuda), torch.tensor([[16.0]]))
    narrow = mutated_attention("mask=in_block, other=0).to(tl.int64)", "mask=in_block, other=0)")
    assert last_block_of_many(narrow).item() == 0  # 2^32 wraps to block 0


@pytest.mark.parametrize("prefix", [16, 48])
def test_a_shared_prefix_is_attended_once(prefix: int) -> None:
    """Cascade: all rows of a group over the prefix without a mask, each over its own rest, merged."""
    step = Step([1, 1, 1], [prefix + 5, prefix + 30, prefix + 1])
    shared = prefix // 16
    step.tables[1:, :shared] = step.tables[0, :shared]
    expected = step.expected()[0]
    rest_lse, prefix_lse = torch.empty(3, 4), torch.empty(3, 4)
    rest = int32([length - prefix for length in step.lengths])
    tables = step.tables[:, shared:].contiguous()
    own = cuda.paged_attention(step.query, step.cache, step.cu_seqlens, rest, tables, 0.25, lse=rest_lse)
    group = (step.query, step.cache, int32([0, 3]), int32([prefix]), step.tables[:1, :shared], 0.25)
    common = cuda.paged_attention(*group, causal=False, lse=prefix_lse)
    result = merge_attention_states(common, prefix_lse, own, rest_lse)
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=3e-6)


def test_wrong_arguments_are_refused() -> None:
    step = Step([3], [3])
    with pytest.raises(ValueError, match="queries that fit the cache"):
        step.run(cuda.paged_attention, step.query[..., :8])
    with pytest.raises(ValueError, match="cache of the query's type"):
        step.run(cuda.paged_attention, step.query.half())
    with pytest.raises(ValueError, match="int32"):
        cuda.paged_attention(step.query, step.cache, step.cu_seqlens.long(), int32([3]), step.tables, 1.0)
    turned = LayerCache(step.cache.key.transpose(2, 3), step.cache.value)
    with pytest.raises(ValueError, match="last axes are dense"):
        cuda.paged_attention(step.query, turned, step.cu_seqlens, int32([3]), step.tables, 1.0)
    with pytest.raises(ValueError, match="LSE"):
        step.run(cuda.paged_attention, step.query, lse=torch.empty(3, 5))


MUTATIONS = {
    "no causal mask": ("at[None, :] <= position[:, None]", "at[None, :] < length"),
    "a window too wide by one": ("position[:, None] - WINDOW", "position[:, None] - WINDOW - 1"),
    "a window's first tile missed": ("first_token - WINDOW + 1, 0)", "first_token - WINDOW + 33, 0)"),
    "an end too early": ("at < end)\n        # Keys", "at < end - 1)\n        # Keys"),
    "the next block": ("table + at // BLOCK_SIZE", "table + (at + 1) // BLOCK_SIZE"),
    "the group's heads in turn": ("kv_head * GROUP + row % GROUP", "kv_head + row % GROUP * 2"),
    "no maximum subtracted": ("tl.exp2(scores - shift[:, None])", "tl.exp2(scores)"),
    "no decay of the result": ("result = result * decay[:, None] + joined", "result = result + joined"),
    "no decay of the total": ("total = total * decay +", "total = total +"),
    "a scale in base e": (" * (scale * 1.4426950408889634)", " * scale"),
    "no key scales": ("scores = scores * tl.load(key_scales", "scores = scores + 0 * tl.load(key_scales"),
    "the keys' scales for values": ("tl.load(value_scales + scales_at", "tl.load(key_scales + scales_at"),
    "unstored values read": (
        "mask=inside[:, None] & (dim < DIM)[None, :]",
        "mask=in_block[:, None] & (dim < DIM)[None, :]",
    ),
    "splits that overlap": ("split * SPLIT_LENGTH + SPLIT_LENGTH)", "split * SPLIT_LENGTH + SPLIT_LENGTH + 1)"),
    "dead splits counted": (
        "weight = tl.exp(part - shift)",
        'weight = tl.where(part == -float("inf"), 1.0, tl.exp(part - shift))',
    ),
    "a merge without its maximum": (
        'shift = tl.where(highest == -float("inf"), 0.0, highest)\n\n    total',
        "shift = 0.0\n\n    total",
    ),
    "one tile of queries too few": (
        "rows // (tiling.rows // group) + batch",
        "rows // (tiling.rows // group) + batch - 1",
    ),
}
CAUGHT_BY = (
    Step([1, 1, 1], [9, 90, 41], kv=torch.int8, seed=1),
    Step([1, 1], [40, 90], scale=60.0, seed=2),
    Step([9, 70], [30, 75], seed=3, options={"window": 20}),
)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, mutated_attention: Callable[[str, str], Any]) -> None:
    module = mutated_attention(*MUTATIONS[name])

    def is_caught(step: Step) -> bool:
        try:
            return step.difference(module, split=32 if max(step.counts) == 1 else None) > 1e-3
        except Exception as error:
            return "outside of every argument" in str(error) or "race" in str(error)

    assert any(is_caught(step) for step in CAUGHT_BY)


@pytest.mark.parametrize("step", CAUGHT_BY)
def test_what_catches_mutations_passes_the_kernel(step: Step) -> None:
    assert step.difference(split=32 if max(step.counts) == 1 else None) < 1e-4
