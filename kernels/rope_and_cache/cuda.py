"""Rotary position embedding, the norm of queries and keys, and the store into KV blocks, in one launch on a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vtk.kernels.cpu_checks import require
from vtk.kernels.cuda_cases import CompileCase, pointer_to
from vtk.kernels.int8_rounding import SMALLEST
from vtk.kernels.kv_cache import LayerCache

SMALLEST_GROUP = tl.constexpr(SMALLEST)
ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding it to a small float32 rounds that one half to even
NUM_WARPS = 1  # a head is rotated in place: one warp loads all of it before it stores any


@triton.jit
def _load_head(
    head: tl.tensor, norm: tl.tensor, eps: tl.tensor, place: tl.tensor, D: tl.constexpr, NORM: tl.constexpr
) -> tl.tensor:
    value = tl.load(head + place, mask=place < D, other=0.0).to(tl.float32)
    if NORM:
        weight = tl.load(norm + place, mask=place < D, other=0.0).to(tl.float32)
        value = value * tl.math.rsqrt(tl.sum(value * value) / D + eps) * weight
    return value


@triton.jit
def _rotate(value: tl.tensor, cos: tl.tensor, sin: tl.tensor) -> tl.tensor:
    first, second = tl.split(value)
    return tl.join(first * cos - second * sin, second * cos + first * sin)


@triton.jit
def _store_head(
    value: tl.tensor,
    elements: tl.tensor,
    scale: tl.tensor,
    stored: tl.tensor,
    inside: tl.tensor,
    QUANTIZED: tl.constexpr,
) -> None:
    if QUANTIZED:
        # As integers, magnitudes lie in the order of their values, with what is no number above all: it must stay seen.
        largest = tl.max(tl.abs(value).to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
        inverse = tl.where(largest > SMALLEST_GROUP, tl.div_rn(127.0, largest), 0.0)
        value = value * inverse + ROUNDING - ROUNDING
        tl.store(scale, tl.div_rn(largest, 127.0), mask=stored)
    tl.store(elements, value.to(elements.dtype.element_ty), mask=inside & stored)


@triton.jit
def _rope_and_cache(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    slot_mapping: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    query_norm: tl.tensor,
    key_norm: tl.tensor,
    eps: tl.tensor,
    query_row: tl.tensor,
    query_head: tl.tensor,
    key_row: tl.tensor,
    key_head: tl.tensor,
    value_row: tl.tensor,
    value_head: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    QUERY_NORM: tl.constexpr,
    KEY_NORM: tl.constexpr,
    QUANTIZED: tl.constexpr,
) -> None:
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # Column 0 and 1 of a pair turn into each other: i and i + HALF; what lies beyond 2 * HALF follows, two by two.
    pair, column = tl.arange(0, BLOCK_PAIRS)[:, None], tl.arange(0, 2)[None, :]
    place = tl.where(pair < HALF, pair + HALF * column, 2 * pair + column)
    angle = tl.load(positions + token) * HALF + tl.arange(0, BLOCK_PAIRS)
    turned = tl.arange(0, BLOCK_PAIRS) < HALF
    c = tl.load(cos + angle, mask=turned, other=1.0)
    s = tl.load(sin + angle, mask=turned, other=0.0)
    if head < HEADS:
        elements = query + token * query_row + head * query_head
        rotated = _rotate(_load_head(elements, query_norm, eps, place, D, QUERY_NORM), c, s)
        tl.store(elements + place, rotated.to(query.dtype.element_ty), mask=place < D)
    else:
        kv_head = head - HEADS
        elements = key + token * key_row + kv_head * key_head
        rotated = _rotate(_load_head(elements, key_norm, eps, place, D, KEY_NORM), c, s)
        tl.store(elements + place, rotated.to(key.dtype.element_ty), mask=place < D)
        slot = tl.load(slot_mapping + token)
        stored, offset = slot >= 0, slot % BLOCK_SIZE
        block_head = slot // BLOCK_SIZE * KV_HEADS + kv_head
        scale = block_head * BLOCK_SIZE + offset
        into = key_cache + block_head * D * BLOCK_SIZE + place * BLOCK_SIZE + offset
        _store_head(rotated, into, key_scales + scale, stored, place < D, QUANTIZED)
        kept = _load_head(value + token * value_row + kv_head * value_head, value, eps, place, D, False)
        into = value_cache + (block_head * BLOCK_SIZE + offset) * D + place
        _store_head(kept, into, value_scales + scale, stored, place < D, QUANTIZED)


def rope_and_cache(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: LayerCache[torch.Tensor],
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """As `reference.rope_and_cache`, in float32 from and to tensors of any float type; the tables are float32.

    The cache receives the rotated keys before they are rounded to the type of `key`. Without scales it may be of any
    float type. One program of one warp for each token and head: a KV head's program rotates, and stores key and value.

    Floor at 32 tokens of 32 + 8 heads of 128 in bfloat16: 0.92 MB (query and key in and out, value in, both stored)
    and 1 MFLOP, 0.28 us at 3.35 TB/s. Predicted: 12 % of the bandwidth there, since a launch takes 2 us; 60 % from
    2,048 tokens on, where the stores of keys, a block apart, fill a quarter of each sector at a time.
    """
    (rows, heads, head_dim), half = query.shape, cos.shape[-1]
    _check(query, key, value, cos, sin, cache)
    if not rows:
        return
    key_scales = cache.key if cache.key_scales is None else cache.key_scales
    value_scales = cache.value if cache.value_scales is None else cache.value_scales
    _rope_and_cache[(rows, heads + cache.kv_heads)](
        query, key, value, cos, sin, positions, slot_mapping, cache.key, cache.value, key_scales, value_scales,
        cos if query_norm is None else query_norm, cos if key_norm is None else key_norm, eps,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        HEADS=heads, KV_HEADS=cache.kv_heads, D=head_dim, HALF=half, BLOCK_SIZE=cache.block_size,
        BLOCK_PAIRS=_block_pairs(head_dim, half), QUERY_NORM=query_norm is not None, KEY_NORM=key_norm is not None,
        QUANTIZED=cache.key_scales is not None, num_warps=NUM_WARPS,
    )  # fmt: skip


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cache: LayerCache[torch.Tensor],
) -> None:
    rows, _, head_dim = query.shape
    kv_shape = (rows, cache.kv_heads, cache.head_dim)
    fits = head_dim == cache.head_dim and key.shape == value.shape == kv_shape and 2 * cos.shape[-1] <= head_dim
    fits = fits and all(head.stride(2) == 1 for head in (query, key, value))
    require(fits, f"(T, H, D) queries and {kv_shape} keys and values, contiguous along D", query, key, value)
    require(cos.shape == sin.shape and cos.is_contiguous() and sin.is_contiguous(), "contiguous tables", cos, sin)
    require(all(tensor.is_contiguous() for tensor in cache.tensors), "a contiguous cache", *cache.tensors)


def _block_pairs(head_dim: int, half: int) -> int:
    pairs: int = triton.next_power_of_2(half + triton.cdiv(head_dim - 2 * half, 2))
    return pairs


def _case(name: str, dtype: torch.dtype, cache: torch.dtype, *, head_dim: int = 128, norm: bool = False) -> CompileCase:
    pointer, cached = pointer_to(dtype), pointer_to(cache)
    scales = "*fp32" if cache == torch.int8 else cached
    strides = [f"{tensor}_{axis}" for tensor in ("query", "key", "value") for axis in ("row", "head")]
    aligned = ("query", "key", "value", "cos", "sin", "key_cache", "value_cache", *strides)
    return CompileCase(
        name=f"rope_and_cache {name}",
        kernel=_rope_and_cache,
        signature={
            "query": pointer, "key": pointer, "value": pointer, "cos": "*fp32", "sin": "*fp32",
            "positions": "*i64", "slot_mapping": "*i64", "key_cache": cached, "value_cache": cached,
            "key_scales": scales, "value_scales": scales, "query_norm": "*fp32", "key_norm": "*fp32", "eps": "fp32",
            **dict.fromkeys(strides, "i32"),
        },
        constants={
            "HEADS": 32, "KV_HEADS": 8, "D": head_dim, "HALF": head_dim // 2, "BLOCK_SIZE": 16,
            "BLOCK_PAIRS": _block_pairs(head_dim, head_dim // 2), "QUERY_NORM": norm, "KEY_NORM": norm,
            "QUANTIZED": cache == torch.int8,
        },
        aligned=aligned,
        num_warps=NUM_WARPS,
        capabilities=(89, 90, 100) if cache == torch.float8_e4m3fn else CompileCase.capabilities,
    )  # fmt: skip


COMPILE_CASES = (
    _case("bf16", torch.bfloat16, torch.bfloat16),
    _case("bf16 normed", torch.bfloat16, torch.bfloat16, norm=True),
    _case("fp16 to int8", torch.float16, torch.int8),
    _case("bf16 to fp8", torch.bfloat16, torch.float8_e4m3fn),
    _case("fp32 of 96", torch.float32, torch.float32, head_dim=96),
)
