"""Normalization, activation, embedding, block copies and draft checks in the interpreter, beside float64 references."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton.runtime.errors import InterpreterError

from vtk.kernels import reference_ops
from vtk.kernels.copy_blocks import cuda as copy_blocks
from vtk.kernels.embedding import cuda as embedding
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.rms_norm import cuda as rms_norm
from vtk.kernels.silu_and_mul import cuda as silu_and_mul
from vtk.kernels.torch_cache import allocate_cache, kv_name
from vtk.kernels.verify_draft import cuda as verify_draft
from vtk.kernels.verify_draft.reference import verify_draft as verify_draft_reference
from vtk.kernels.weights import StoredWeight

pytestmark = pytest.mark.usefixtures("interpreted")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
few = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
rows, widths, gaps = st.integers(0, 3), st.integers(1, 300), st.sampled_from([0, 5, 16])


def close(result: torch.Tensor, exact: torch.Tensor) -> None:
    """Within one rounding of the type, and float32's errors before it; what float32 holds as zero may be zero."""
    least = max(1e-36, torch.finfo(result.dtype).smallest_normal * torch.finfo(result.dtype).eps)
    torch.testing.assert_close(result.double(), exact, rtol=torch.finfo(result.dtype).eps / 2 + 2e-6, atol=least)


@few
@given(dtype=st.sampled_from(DTYPES), rows=rows, width=widths, gap=gaps, add=st.booleans(), size=st.floats(0.01, 100))
def test_rms_norm(
    buffer: Callable[..., Any], dtype: torch.dtype, rows: int, width: int, gap: int, add: bool, size: float
) -> None:
    x, stream, out = (buffer(rows, width, dtype=dtype, gap=gap) for _ in range(3))
    x.tensor.copy_(torch.randn(rows, width) * size)
    stream.tensor.copy_(torch.randn(rows, width))
    total = (x.tensor.float() + stream.tensor.float()).to(dtype) if add else x.tensor.clone()
    before, weight = stream.tensor.clone(), torch.randn(width)
    rms_norm.rms_norm(x.tensor, weight, 1e-5, stream.tensor if add else None, out.tensor)
    exact = reference_ops.rms_norm(total.double(), weight.double(), 1e-5)
    close(out.tensor, exact)
    assert torch.equal(stream.tensor, total if add else before)
    assert all(part.intact() for part in (x, stream, out))


def test_the_output_of_rms_norm_may_be_its_input() -> None:
    x, weight = torch.randn(2, 48), torch.randn(48)
    exact = reference_ops.rms_norm(x.double(), weight.double(), 1e-6)
    close(rms_norm.rms_norm(x, weight, 1e-6, out=x), exact)


@few
@given(dtype=st.sampled_from(DTYPES), rows=rows, width=widths, gap=gaps, size=st.floats(0.1, 30))
def test_silu_and_mul(
    buffer: Callable[..., Any], dtype: torch.dtype, rows: int, width: int, gap: int, size: float
) -> None:
    gate_up, out = buffer(rows, 2 * width, dtype=dtype, gap=gap), buffer(rows, width, dtype=dtype, gap=gap)
    gate_up.tensor.copy_(torch.randn(rows, 2 * width) * size)
    silu_and_mul.silu_and_mul(gate_up.tensor, out.tensor)
    exact = reference_ops.silu_and_mul(gate_up.tensor.double())
    lost = gate_up.tensor[:, :width].double() < -math.log(torch.finfo(torch.float32).max)
    exact[lost & (out.tensor == 0)] = 0  # where e^-x is no float32, x / (1 + e^-x) may be zero
    close(out.tensor, exact)
    assert gate_up.intact()
    assert out.intact()


def test_a_row_wider_than_a_program() -> None:
    gate_up = torch.randn(2, 2 * (silu_and_mul.BLOCK + 3))
    close(silu_and_mul.silu_and_mul(gate_up), reference_ops.silu_and_mul(gate_up.double()))
    table = torch.randn(3, embedding.BLOCK + 3)
    assert torch.equal(embedding.embedding(torch.tensor([2, 0]), table), table[[2, 0]])


@few
@given(dtype=st.sampled_from(DTYPES), rows=rows, width=widths, gap=gaps, vocab_size=st.integers(1, 50))
def test_embedding(
    buffer: Callable[..., Any], dtype: torch.dtype, rows: int, width: int, gap: int, vocab_size: int
) -> None:
    token_ids = torch.randint(vocab_size, (rows,))
    table, out = buffer(vocab_size, width, dtype=dtype, gap=gap), buffer(rows, width, dtype=dtype, gap=gap)
    table.tensor.copy_(torch.randn(vocab_size, width))
    embedding.embedding(token_ids, table.tensor, out.tensor)
    stored = StoredWeight("f32", table.tensor.float().contiguous().numpy())
    assert torch.equal(out.tensor.float(), reference_ops.embedding(token_ids, stored))
    assert out.intact()


def test_ids_outside_of_the_table_read_nothing() -> None:
    """The interpreter's memory would notice a read; what is returned is not mistaken for a row."""
    result = embedding.embedding(torch.tensor([-1, 3, 1 << 40, 2]), torch.ones(3, 20))
    assert torch.equal(result.isnan().all(1), torch.tensor([True, True, True, False]))


def caches(dtype: torch.dtype) -> list[LayerCache]:
    made = [allocate_cache(6, 2, 4, 8, kv_name(dtype)) for _ in range(2)]
    for cache in made:
        for tensor in cache.tensors:
            tensor.copy_(torch.randint(-100, 100, tensor.shape))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize(
    "pairs", [[], [(0, 5)], [(1, 3), (1, 2), (4, 0)], [(0, 1), (1, 2), (2, 0)]], ids=["none", "one", "many", "cycle"]
)
def test_copy_blocks(dtype: torch.dtype, pairs: list[tuple[int, int]]) -> None:
    made = caches(dtype)
    expected = [tuple(tensor.clone() for tensor in cache.tensors) for cache in made]
    reference_ops.copy_blocks([LayerCache(*tensors) for tensors in expected], pairs)
    copy_blocks.copy_blocks(made, pairs)
    for cache, tensors in zip(made, expected, strict=True):
        assert all(map(torch.equal, cache.tensors, tensors))


def test_blocks_of_no_whole_words() -> None:
    cache = LayerCache(
        torch.arange(21, dtype=torch.int8).view(3, 1, 7, 1), torch.arange(21, dtype=torch.int8).view(3, 1, 1, 7)
    )
    copy_blocks.copy_blocks([cache], [(2, 0)])
    assert cache.key.flatten().tolist() == [*range(14, 21), *range(7, 21)]


@few
@given(rows=st.integers(0, 4), width=st.integers(0, 6), vocab_size=st.integers(1, 3))
def test_verify_draft(rows: int, width: int, vocab_size: int) -> None:
    drafts = torch.randint(-1, vocab_size, (width, rows)).t()
    sampled = torch.randint(vocab_size, (rows, 2 * width + 2))[:, ::2]
    result = verify_draft.verify_draft(drafts, sampled)
    assert all(map(torch.equal, result, verify_draft_reference(drafts, sampled)))


def test_a_wrong_first_draft_token_is_not_accepted() -> None:
    """Case L25."""
    tokens, counts = verify_draft.verify_draft(torch.tensor([[7, 1, 1]]), torch.tensor([[1, 1, 1, 1]]))
    assert (tokens.tolist(), counts.tolist()) == ([[1, -1, -1, -1]], [1])


def test_a_whole_draft_brings_one_token_more() -> None:
    tokens, counts = verify_draft.verify_draft(torch.tensor([[1, 2], [1, -1]]), torch.tensor([[1, 2, 3], [1, 5, 6]]))
    assert (tokens.tolist(), counts.tolist()) == ([[1, 2, 3], [1, 5, -1]], [3, 2])


Law = Callable[[Any], None]


def law_rms_norm(module: Any) -> None:
    x, stream, weight = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
    total = x + stream
    close(module.rms_norm(x, weight, 0.1, stream), reference_ops.rms_norm(total.double(), weight.double(), 0.1))
    assert torch.equal(stream, total)


def law_silu_and_mul(module: Any) -> None:
    gate_up = torch.randn(2, 60)
    close(module.silu_and_mul(gate_up), reference_ops.silu_and_mul(gate_up.double()))


def law_embedding(module: Any) -> None:
    table = torch.randn(5, 20)
    assert torch.equal(module.embedding(torch.tensor([4, 0]), table), table[[4, 0]])


def law_copy_blocks(module: Any) -> None:
    tensor = torch.arange(4).float()[:, None, None, None].expand(4, 1, 8, 1).contiguous()
    module.copy_blocks([LayerCache(tensor, tensor.clone().view(4, 1, 1, 8))], [(3, 1), (2, 0)])
    assert tensor[:, 0, 0, 0].tolist() == [2, 3, 2, 3]


def law_verify_draft(module: Any) -> None:
    tokens, counts = module.verify_draft(torch.tensor([[1, 2], [5, 2], [1, 5]]), torch.tensor([[1, 2, 3]] * 3))
    assert tokens.tolist() == [[1, 2, 3], [1, -1, -1], [1, 2, -1]]
    assert counts.tolist() == [3, 1, 2]


MUTATIONS: list[tuple[Any, Law, str, str]] = [
    (rms_norm, law_rms_norm, "/ columns + eps", "/ BLOCK + eps"),
    (rms_norm, law_rms_norm, "+ eps)", ")"),
    (rms_norm, law_rms_norm, "tl.store(sums, value.to(residual.dtype.element_ty), mask=inside)", "pass"),
    (rms_norm, law_rms_norm, "+ row * residual_row +", "+"),
    (silu_and_mul, law_silu_and_mul, "tl.exp(-gate)", "tl.exp(gate)"),
    (silu_and_mul, law_silu_and_mul, "gates + columns * in_column", "gates + (columns - 1) * in_column"),
    (silu_and_mul, law_silu_and_mul, "inside = column < columns", "inside = column < columns + 1"),
    (embedding, law_embedding, "token * table_row", "row * table_row"),
    (embedding, law_embedding, "inside = column < columns", "inside = column < columns - 1"),
    (copy_blocks, law_copy_blocks, "target * num_words", "source * num_words"),
    (copy_blocks, law_copy_blocks, "pairs + 2 * tl", "pairs + tl"),
    (verify_draft, law_verify_draft, "place, BLOCK), 0) + 1", "place, BLOCK), 0)"),
    (verify_draft, law_verify_draft, "other=-1)\n    own", "other=3)\n    own"),
    (verify_draft, law_verify_draft, "draft != own", "(draft != own) & (place > 0)"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "law", "old", "new"), MUTATIONS)
def test_a_mutation_is_caught(
    mutated: Callable[[str, str, str], Any], module: Any, law: Law, old: str, new: str
) -> None:
    law(module)
    mutant = mutated(module.__name__, old, new)
    with pytest.raises((AssertionError, InterpreterError)):
        law(mutant)
