"""Paged attention in Triton: an online softmax over tiles of cached positions (Dao et al. 2022, arXiv:2205.14135)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton

from vtk.kernels.cpu_checks import require
from vtk.kernels.cuda_cases import CompileCase, pointer_to
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.paged_attention.cuda_kernels import attend, merge_splits

SPLIT = 256  # positions per program of a decode step: fixed, so that a row's bits do not depend on the batch
MAX_HEAD_DIM = 256


@dataclass(frozen=True)
class Tiling:
    """Rows of queries and positions of keys per step of a program, warps of a program, stages of its copies."""

    rows: int
    positions: int
    num_warps: int
    num_stages: int


def decode_tiling(group: int, head_dim: int, dtype: torch.dtype, kv: torch.dtype) -> Tiling:
    """The heads of one group on a tensor core's 16 rows: bound by memory, so the copies in flight matter."""
    wide = head_dim > (64 if dtype == torch.float32 else 128)
    return Tiling(max(16, triton.next_power_of_2(group)), 32 if wide else 64, 4, 3)


def prefill_tiling(group: int, head_dim: int, dtype: torch.dtype, kv: torch.dtype) -> Tiling:
    """As many rows as the registers hold beside a tile of keys, which they also widen if it is of 8 bits."""
    if dtype == torch.float32:
        rows, positions = (64 if head_dim <= 64 else 32), 16
    else:
        rows, positions = (128 if head_dim <= 128 else 64), (64 if head_dim <= 128 and kv.itemsize > 1 else 32)
    return Tiling(max(rows, triton.next_power_of_2(group)), positions, 8, 3)


def paged_attention(
    query: torch.Tensor,
    cache: LayerCache[torch.Tensor],
    cu_seqlens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    *,
    window: int | None = None,
    causal: bool = True,
    lse: torch.Tensor | None = None,
    tiling: Tiling | None = None,
    split: int | None = None,
) -> torch.Tensor:
    """As `reference.paged_attention`, in float16, bfloat16 or float32; head_dim is at most 256.

    The cache holds the query's type, or 8 bits: int8 or float8_e4m3fn, with or without scales. Its keys, values and
    scales may be strided but for their last axis. float32 products are three TF32 ones, exact to about 1e-6.

    A step with no more rows than sequences takes decode's shape: tiles of one token, positions split among programs
    and merged by a second launch. Any other step takes prefill's, unsplit, which is right for mixed steps too but slow
    for long sequences among them. A decoded row's bits depend neither on the other rows nor on the table's width.
    Launches depend on shapes alone, never on values: no synchronization, and a CUDA graph may hold them.

    Floor of decode at batch 32, context 4,096, 32 + 8 heads of 128 in bfloat16: 537 MB of KV and 2.1 GFLOP, 160 us at
    an H100's 3.35 TB/s; predicted share 75 %, for the merge and the partial results (17 MB) and the last wave.
    Floor of prefill of one sequence of 4,096 there: 137 GFLOP, 139 us at 989 TFLOP/s, and 84 MB; predicted share 40 %,
    since the softmax shares the issue slots with the products and pages are gathered without TMA.
    Not yet measured on a GPU.
    """
    _check(query, cache, cu_seqlens, seq_lens, block_tables, lse)
    rows, heads, head_dim = query.shape
    batch = len(seq_lens)
    result = torch.empty_like(query, memory_format=torch.contiguous_format) if out is None else out
    if rows == 0:
        return result
    group = heads // cache.kv_heads
    decode = rows <= batch
    choose = decode_tiling if decode else prefill_tiling
    tiling = tiling or choose(group, head_dim, query.dtype, cache.key.dtype)
    split = split or (SPLIT if decode else None)
    num_splits = 1 if split is None else max(1, triton.cdiv(block_tables.shape[1] * cache.block_size, split))
    if num_splits == 1:
        _launch(query, cache, cu_seqlens, seq_lens, block_tables, scale, result, lse, window, causal, tiling, None)
        return result
    partial = query.new_empty(rows, heads, num_splits, head_dim, dtype=torch.float32)
    partial_lse = query.new_empty(rows, heads, num_splits, dtype=torch.float32)
    _launch(
        query, cache, cu_seqlens, seq_lens, block_tables, scale, partial, partial_lse, window, causal, tiling, split
    )
    merge_splits[(rows, heads)](
        partial,
        partial_lse,
        result,
        lse,
        num_splits,
        result.stride(0),
        result.stride(1),
        *(lse.stride() if lse is not None else (0, 0)),
        HEADS=heads,
        DIM=head_dim,
        DIM_PADDED=triton.next_power_of_2(head_dim),
        CHUNK=16,
        num_warps=2,
    )
    return result


def _check(
    query: torch.Tensor,
    cache: LayerCache[torch.Tensor],
    cu_seqlens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """ValueError for what the kernels would read wrongly."""
    fits = query.dim() == 3 and query.shape[2] == cache.head_dim <= MAX_HEAD_DIM and query.stride(2) == 1
    fits = fits and query.shape[1] % cache.kv_heads == 0
    require(fits, "(T, H, D) queries that fit the cache", query, cache.value)
    same = cache.key.dtype == query.dtype and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
    narrow = cache.key.dtype in (torch.int8, torch.float8_e4m3fn)
    require(same or narrow, "a cache of the query's type, int8 or float8_e4m3fn", query, cache.key)
    require(all(t.stride(-1) == 1 for t in cache.tensors), "a cache whose last axes are dense", *cache.tensors)
    batch = len(seq_lens)
    shapes = cu_seqlens.shape == (batch + 1,) and block_tables.dim() == 2 and len(block_tables) == batch
    metadata = (cu_seqlens, seq_lens, block_tables)
    fits = shapes and all(t.dtype == torch.int32 and t.stride(-1) == 1 for t in metadata)
    require(fits, "(B + 1,), (B,) and (B, blocks) int32 with a dense last axis", *metadata)
    fits = lse is None or (lse.shape == query.shape[:2] and lse.dtype == torch.float32)
    require(fits, "an LSE of (T, H) float32", lse)


def _launch(
    query: torch.Tensor,
    cache: LayerCache[torch.Tensor],
    cu_seqlens: torch.Tensor,
    seq_lens: torch.Tensor,
    block_tables: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    window: int | None,
    causal: bool,
    tiling: Tiling,
    split: int | None,
) -> None:
    """`out` is (T, H, D), or (T, H, splits, D) with `split` positions each."""
    rows, heads, head_dim = query.shape
    group, batch = heads // cache.kv_heads, len(seq_lens)
    grid = (rows // (tiling.rows // group) + batch, cache.kv_heads, out.shape[2] if split else 1)
    attend[grid](
        query,
        cache.key,
        cache.value,
        cache.key_scales,
        cache.value_scales,
        cu_seqlens,
        seq_lens,
        block_tables,
        out,
        lse,
        scale,
        batch,
        *query.stride()[:2],
        *cache.key.stride()[:3],
        *cache.value.stride()[:3],
        *(cache.key_scales.stride()[:2] if cache.key_scales is not None else (0, 0)),
        block_tables.stride(0),
        *out.stride()[:2],
        out.stride(2) if split else 0,
        *(lse.stride()[:2] if lse is not None else (0, 0)),
        GROUP=group,
        DIM=head_dim,
        DIM_PADDED=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_SIZE=cache.block_size,
        CAUSAL=causal,
        WINDOW=window or 0,
        SPLIT_LENGTH=split or 0,
        ROWS=tiling.rows,
        POSITIONS=tiling.positions,
        RUN=math.gcd(cache.block_size, tiling.positions),
        SEARCH=128,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def _compile_case(name: str, dtype: torch.dtype, kv: torch.dtype, head_dim: int, decode: bool) -> CompileCase:
    """Eight KV heads of four query heads each, blocks of 16, as `_launch` starts them on packed tensors."""
    group, scaled = 4, kv == torch.int8
    tiling = (decode_tiling if decode else prefill_tiling)(group, head_dim, dtype, kv)
    pointers = {
        "query": pointer_to(dtype),
        "key": pointer_to(kv),
        "value": pointer_to(kv),
        **({"key_scales": "*fp32", "value_scales": "*fp32"} if scaled else {}),
        **dict.fromkeys(("cu_seqlens", "seq_lens", "block_tables"), "*i32"),
        "out": "*fp32" if decode else pointer_to(dtype),
        **({"lse": "*fp32"} if decode else {}),
    }
    absent = dict.fromkeys({"key_scales", "value_scales", "lse"} - set(pointers))
    strides = [name for name in attend.arg_names if name.partition("_")[2] in STRIDES and name not in pointers]
    return CompileCase(
        name=f"paged_attention {name}",
        kernel=attend,
        signature=pointers | {"scale": "fp32", "batch": "i32"} | dict.fromkeys(strides, "i32"),
        constants=absent
        | {"GROUP": group, "DIM": head_dim, "DIM_PADDED": head_dim, "BLOCK_SIZE": 16, "CAUSAL": True, "WINDOW": 0}
        | {
            "SPLIT_LENGTH": SPLIT if decode else 0,
            "ROWS": tiling.rows,
            "POSITIONS": tiling.positions,
            "RUN": 16,
            "SEARCH": 128,
        },
        aligned=(*pointers, *(name for name in strides if not name.startswith(("scale_", "table_", "lse_")))),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        tensor_cores=True,
        async_copies=True,
        # Indexes of the rows, parked before the loop and taken back after it.
        max_spills=16,
        capabilities=(89, 90, 100) if kv == torch.float8_e4m3fn else (80, 89, 90, 100),
    )


STRIDES = ("row", "head", "block", "dim", "slot", "split")
_BF16, _FP16, _FP32 = torch.bfloat16, torch.float16, torch.float32
COMPILE_CASES = tuple(
    _compile_case(f"{'decode' if decode else 'prefill'} {name}", dtype, kv, head_dim, decode)
    for decode in (True, False)
    for name, dtype, kv, head_dim in (
        ("bf16 128", _BF16, _BF16, 128),
        ("fp16 64", _FP16, _FP16, 64),
        ("bf16 256", _BF16, _BF16, 256),
        ("fp32 64", _FP32, _FP32, 64),
        ("fp32 128", _FP32, _FP32, 128),
        ("bf16 int8 128", _BF16, torch.int8, 128),
        ("bf16 fp8 128", _BF16, torch.float8_e4m3fn, 128),
    )
)
