"""Attention over two parts of the keys is attention over all of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.kernels.merge_attention_states import cuda, reference

pytestmark = pytest.mark.usefixtures("interpreted")
EPSILON = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.einsum("thd,khd->thk", query, key)
    return torch.einsum("thk,khd->thd", scores.softmax(-1), value), scores.logsumexp(-1)


@pytest.mark.parametrize("cut", [0, 1, 9, 20])
def test_the_reference_joins_any_cut(cut: int) -> None:
    query, key, value = (torch.randn(n, 3, 8).double() for n in (5, 20, 20))
    expected, expected_lse = attention(query, key, value)
    parts = [attention(query, key[a:b], value[a:b]) for a, b in ((0, cut), (cut, 20))]
    lse = torch.empty(5, 3).double()
    result = reference.merge_attention_states(*parts[0], *parts[1], lse=lse)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(lse, expected_lse)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 9),
    heads=st.sampled_from([1, 3, 8]),
    head_dim=st.sampled_from([1, 8, 40, 64, 128]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    scale=st.sampled_from([1.0, 50.0, 1e4]),
    seed=st.integers(0, 1 << 30),
)
def test_it_is_the_reference_in_float64(
    buffer: Callable[..., Any], rows: int, heads: int, head_dim: int, dtype: torch.dtype, scale: float, seed: int
) -> None:
    """A third of the parts saw no key: they hold NaN and are not read."""
    random = torch.Generator().manual_seed(seed)
    states = [buffer(rows, heads, head_dim, dtype=dtype, gap=8).tensor for _ in range(2)]
    sums = [torch.randn(rows, heads, generator=random) * scale for _ in range(2)]
    for state, lse in zip(states, sums, strict=True):
        state.copy_(torch.randn(state.shape, generator=random))
        unseen = torch.rand(rows, heads, generator=random) < 1 / 3
        state[unseen], lse[unseen] = torch.nan, -torch.inf
    out, lse = buffer(rows, heads, head_dim, dtype=dtype, gap=4), buffer(rows, heads, gap=1)
    expected_lse = torch.empty(rows, heads).double()
    arguments = states[0].double(), sums[0].double(), states[1].double(), sums[1].double()
    expected = reference.merge_attention_states(*arguments, lse=expected_lse)
    cuda.merge_attention_states(states[0], sums[0], states[1], sums[1], out.tensor, lse.tensor)
    torch.testing.assert_close(out.tensor.double(), expected, rtol=EPSILON[dtype], atol=EPSILON[dtype])
    torch.testing.assert_close(lse.tensor.double(), expected_lse, rtol=1e-6, atol=1e-6)
    assert out.intact()
    assert lse.intact()


def test_it_may_write_over_an_input() -> None:
    a, b, a_lse, b_lse = torch.randn(4, 2, 16), torch.randn(4, 2, 16), torch.randn(4, 2), torch.randn(4, 2)
    expected = cuda.merge_attention_states(a, a_lse, b, b_lse)
    assert cuda.merge_attention_states(a, a_lse, b, b_lse, out=a) is a
    assert torch.equal(a, expected)


def test_wrong_arguments_are_refused() -> None:
    state, lse = torch.randn(4, 2, 16), torch.randn(4, 2)
    with pytest.raises(ValueError, match="states of one type"):
        cuda.merge_attention_states(state, lse, state.half(), lse)
    with pytest.raises(ValueError, match="LSE of"):
        cuda.merge_attention_states(state, lse[:3], state, lse)


def difference(module: Any) -> float:
    torch.manual_seed(3)
    states = [torch.randn(5, 3, 24) for _ in range(2)]
    sums = [torch.randn(5, 3) * 60 for _ in range(2)]
    sums[0][0], states[0][0] = -torch.inf, torch.nan
    lse, expected_lse = torch.empty(5, 3), torch.empty(5, 3)
    expected = reference.merge_attention_states(states[0], sums[0], states[1], sums[1], lse=expected_lse)
    result = module.merge_attention_states(states[0], sums[0], states[1], sums[1], lse=lse)
    gap = torch.maximum((result - expected).abs().max(), (lse - expected_lse).abs().max())
    return float(gap.nan_to_num(torch.inf))


MUTATIONS = {
    "no maximum subtracted": ('shift = tl.where(highest == -float("inf"), 0.0, highest)', "shift = highest * 0"),
    "no guard of minus infinity": ("mask=(a_weight > 0)[:, None] & inside", "mask=exists[:, None] & inside"),
    "a weight of the other part": ("a * a_weight[:, None]", "a * b_weight[:, None]"),
    "no division by the total": (" / tl.where(total == 0.0, 1.0, total)[:, None]", ""),
    "an LSE without its maximum": ("highest + tl.log(total)", "tl.log(total)"),
    "the head's stride for the row's": (
        "row * second_row + head * second_head",
        "row * second_head + head * second_row",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, mutated: Callable[[str, str, str], Any]) -> None:
    assert difference(cuda) < 1e-5
    module = mutated("vtk.kernels.merge_attention_states.cuda", *MUTATIONS[name])
    try:
        caught = difference(module) > 1e-3
    except Exception as error:
        caught = "outside of every argument" in str(error)
    assert caught
