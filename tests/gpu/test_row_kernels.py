"""The kernels of a language model that work row by row, on the device beside their references in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtk.kernels import reference_ops
from vtk.kernels.copy_blocks.cuda import copy_blocks
from vtk.kernels.embedding.cuda import embedding
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.rms_norm.cuda import rms_norm
from vtk.kernels.rope_and_cache.cuda import rope_and_cache
from vtk.kernels.silu_and_mul.cuda import silu_and_mul
from vtk.kernels.torch_cache import allocate_cache, kv_name
from vtk.kernels.verify_draft.cuda import verify_draft
from vtk.kernels.verify_draft.reference import verify_draft as verify_draft_reference

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def sliced(gpu: Any, rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal values as columns of a wider matrix whose others are NaN."""
    whole = torch.full((rows, width + 16), torch.nan, dtype=dtype)
    whole[:, 8 : 8 + width] = torch.randn(rows, width) * 3
    moved: torch.Tensor = whole.to(gpu.device)[:, 8 : 8 + width]
    return moved


def poisoned(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=like.dtype, device=like.device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 576, 4096, 5000])
def test_rms_norm(gpu: Any, close: Callable[..., None], dtype: torch.dtype, width: int) -> None:
    rows, width = gpu.pick((67, width), (2, min(width, 70)))
    x, residual, weight = sliced(gpu, rows, width, dtype), sliced(gpu, rows, width, dtype), torch.randn(width)
    total = (x.float() + residual.float()).to(dtype)
    out = rms_norm(x, weight.to(gpu.device), 1e-5, residual, poisoned(x, rows, width))
    assert torch.equal(residual, total)
    close(out, reference_ops.rms_norm(total.cpu().double(), weight.double(), 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 1536, 14_336])
def test_silu_and_mul(gpu: Any, close: Callable[..., None], dtype: torch.dtype, width: int) -> None:
    rows, width = gpu.pick((33, width), (2, min(width, 40)))
    gate_up = sliced(gpu, rows, 2 * width, dtype)
    out = silu_and_mul(gate_up, poisoned(gate_up, rows, width))
    close(out, reference_ops.silu_and_mul(gate_up.cpu().double()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(gpu: Any, dtype: torch.dtype) -> None:
    rows, vocab_size, width = gpu.pick((300, 49_152, 576), (5, 9, 40))
    table = sliced(gpu, vocab_size, width, dtype)
    ids = torch.randint(vocab_size, (rows,), device=gpu.device)
    ids[1], ids[3] = -1, vocab_size
    out = embedding(ids, table, poisoned(table, rows, width))
    known = (ids >= 0) & (ids < vocab_size)
    assert torch.equal(out[known], table[ids[known]])
    assert out[~known].isnan().all()


def blocks(gpu: Any, count: int, dtype: torch.dtype) -> LayerCache:
    heads, dim = gpu.pick((8, 128), (2, 8))
    cache = allocate_cache(count, heads, 16, dim, kv_name(dtype), gpu.device)
    for tensor in cache.tensors:
        tensor.copy_(torch.randint(-100, 100, tensor.shape))
    return cache


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
@pytest.mark.parametrize("pairs", [[(0, 5)], [(1, 3), (1, 2), (4, 0)], [(0, 1), (1, 2), (2, 0)]])
def test_copy_blocks(gpu: Any, dtype: torch.dtype, pairs: list[tuple[int, int]]) -> None:
    caches = [blocks(gpu, 6, dtype) for _ in range(2)]
    expected = [LayerCache(*(tensor.cpu() for tensor in cache.tensors)) for cache in caches]
    expected = [LayerCache(*(tensor.clone() for tensor in cache.tensors)) for cache in expected]
    reference_ops.copy_blocks(expected, pairs)
    copy_blocks(caches, pairs)
    for ours, theirs in zip(caches, expected, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours.tensors, theirs.tensors, strict=True))


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (40, 5), (3, 0)])
def test_verify_draft(gpu: Any, rows: int, width: int) -> None:
    drafts, sampled = torch.randint(-1, 3, (rows, width)), torch.randint(3, (rows, width + 1))
    result = verify_draft(drafts.to(gpu.device), sampled.to(gpu.device))
    expected = verify_draft_reference(drafts, sampled)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(result, expected, strict=True))


def empty_cache(gpu: Any, num_blocks: int, kv_heads: int, dim: int, dtype: torch.dtype) -> LayerCache:
    """Zeros where no one stores."""
    cache = allocate_cache(num_blocks, kv_heads, 16, dim, kv_name(dtype), gpu.device)
    for tensor in cache.tensors:
        tensor.view(torch.uint8).zero_()
    return cache


def in_double(cache: LayerCache) -> LayerCache:
    """Zeros of its shapes on the CPU in float64; int8 stays."""
    shapes = [torch.zeros(t.shape, dtype=torch.int8 if t.dtype == torch.int8 else torch.float64) for t in cache.tensors]
    return LayerCache(*shapes)


@pytest.mark.parametrize(
    ("dtype", "cached"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.int8),
        (torch.bfloat16, torch.float8_e4m3fn),
    ],
)
@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_cache(
    gpu: Any, close: Callable[..., None], dtype: torch.dtype, cached: torch.dtype, normed: bool
) -> None:
    if cached == torch.float8_e4m3fn and gpu.capability < 89:
        pytest.skip("float8 needs compute capability 8.9")
    rows, heads, kv_heads, dim = gpu.pick((77, 12, 4, 128), (4, 2, 1, 16))
    num_blocks = -(-rows // 16) + 1
    qkv = torch.randn(rows, heads + 2 * kv_heads, dim).to(dtype)
    angles, norms = torch.rand(500, dim // 2) * 6, [torch.randn(dim) if normed else None for _ in range(2)]
    positions, slots = torch.randint(500, (rows,)), torch.randperm(num_blocks * 16)[:rows]
    slots[torch.rand(rows) < 0.2] = -1
    cache, ours, exact = empty_cache(gpu, num_blocks, kv_heads, dim, cached), qkv.to(gpu.device), qkv.double()
    exact_cache = in_double(cache)
    where = [part.to(gpu.device) for part in (angles.cos(), angles.sin(), positions, slots)]
    on_device = [None if norm is None else norm.to(gpu.device) for norm in norms]
    sizes = (heads, kv_heads, kv_heads)
    rope_and_cache(*torch.split(ours, sizes, 1), *where, cache, *on_device)
    reference_ops.rope_and_cache(
        *torch.split(exact, sizes, 1), angles.cos().double(), angles.sin().double(), positions, slots, exact_cache,
        *norms,
    )  # fmt: skip
    close(ours, exact, 1e-5)
    for stored, wanted in zip(cache.tensors, exact_cache.tensors, strict=True):
        if stored.dtype == torch.int8:
            assert (stored.cpu().int() - wanted.int()).abs().max() <= 1
        else:
            close(
                stored.float().to(cached) if cached.itemsize > 1 else stored,
                wanted,
                1e-3 if cached.itemsize == 1 else 1e-5,
            )
