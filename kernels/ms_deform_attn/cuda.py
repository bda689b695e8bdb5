"""Multi-scale deformable attention on a GPU: every sample is mixed where it is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

from vtk.kernels.cpu_checks import require
from vtk.kernels.cuda_cases import CompileCase, pointer_to

BLOCK_Q = 16
NUM_WARPS = 4


@triton.jit
def _corner(
    head: tl.tensor,
    value_row: tl.tensor,
    dim: tl.tensor,
    start: tl.tensor,
    x: tl.tensor,
    y: tl.tensor,
    weight: tl.tensor,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
) -> tl.tensor:
    inside = (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
    place = (start + y * WIDTH + x)[:, None] * value_row + dim[None, :]
    value = tl.load(head + place, mask=inside[:, None] & (dim < D)[None, :], other=0.0)
    return weight[:, None] * value.to(tl.float32)


@triton.jit
def _sample_level(
    head: tl.tensor,
    value_row: tl.tensor,
    dim: tl.tensor,
    start: tl.tensor,
    location: tl.tensor,
    share: tl.tensor,
    found: tl.tensor,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    POINTS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> tl.tensor:
    total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    for point in range(POINTS):
        x = tl.load(location + 2 * point, mask=found, other=-1.0).to(tl.float32) * WIDTH - 0.5
        y = tl.load(location + 2 * point + 1, mask=found, other=-1.0).to(tl.float32) * HEIGHT - 0.5
        weight = tl.load(share + point, mask=found, other=0.0).to(tl.float32)
        # What is far away or not a number has no integer: it goes where all four corners are outside.
        near = (x > -1) & (x < WIDTH) & (y > -1) & (y < HEIGHT)
        x, y = tl.where(near, x, -2.0), tl.where(near, y, -2.0)
        left, top = tl.floor(x), tl.floor(y)
        x0, y0, rightness, lowness = left.to(tl.int32), top.to(tl.int32), x - left, y - top
        upper, lower = weight * (1 - lowness), weight * lowness
        total += _corner(head, value_row, dim, start, x0, y0, upper * (1 - rightness), HEIGHT, WIDTH, D)
        total += _corner(head, value_row, dim, start, x0 + 1, y0, upper * rightness, HEIGHT, WIDTH, D)
        total += _corner(head, value_row, dim, start, x0, y0 + 1, lower * (1 - rightness), HEIGHT, WIDTH, D)
        total += _corner(head, value_row, dim, start, x0 + 1, y0 + 1, lower * rightness, HEIGHT, WIDTH, D)
    return total


@triton.jit
def _ms_deform_attn(
    value: tl.tensor,
    locations: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    queries: tl.tensor,
    heads: tl.tensor,
    value_batch: tl.tensor,
    value_row: tl.tensor,
    value_head: tl.tensor,
    locations_batch: tl.tensor,
    locations_head: tl.tensor,
    locations_query: tl.tensor,
    weights_batch: tl.tensor,
    weights_head: tl.tensor,
    weights_query: tl.tensor,
    HEIGHTS: tl.constexpr,
    WIDTHS: tl.constexpr,
    POINTS: tl.constexpr,
    LEVELS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_Q: tl.constexpr,
) -> None:
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    query = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dim = tl.arange(0, BLOCK_D)
    values = value + batch * value_batch + head * value_head
    location = locations + batch * locations_batch + head * locations_head + query * locations_query
    share = weights + batch * weights_batch + head * weights_head + query * weights_query
    total = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    start = tl.full([], 0, tl.int64)
    for level in tl.static_range(LEVELS):
        total += _sample_level(
            values, value_row, dim, start, location, share, query < queries,
            HEIGHTS[level], WIDTHS[level], POINTS[level], D, BLOCK_Q, BLOCK_D,
        )  # fmt: skip
        start += HEIGHTS[level] * WIDTHS[level]
        location += 2 * POINTS[level]
        share += POINTS[level]
    row = (batch * queries + query)[:, None] * heads + head
    tl.store(
        out + row * D + dim[None, :],
        total.to(out.dtype.element_ty),
        mask=(query < queries)[:, None] & (dim < D)[None, :],
    )


def ms_deform_attn(
    value: torch.Tensor,
    level_hw: Sequence[tuple[int, int]],
    points: Sequence[int],
    locations: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """As `reference.ms_deform_attn`, in float32 from tensors of any float type; the result has the type of `value`.

    D of `value`, xy of `locations` and P are contiguous, other strides are free. A location that is NaN samples zeros.
    One program for 16 queries of a head; channels are neighbors, so that a corner of a sample is a few sectors.

    Floor of D-FINE-L at 640 (300 queries, 8 heads of 32, 12 points, 8,400 positions) in float16, one picture: 4.7 MB,
    1.4 us at 3.35 TB/s; 7.4 MB of samples from L2 and 9 MFLOP. Predicted: 20 % of the bandwidth there, since 152
    programs of 48 dependent loads take 5 us; 60 % from 8 pictures on.
    """
    batch, positions, heads, dim = value.shape
    queries, total = locations.shape[2], sum(points)
    require(positions == sum(height * width for height, width in level_hw), f"values of the maps {level_hw}", value)
    fits = locations.shape == (batch, heads, queries, total, 2) and weights.shape == (batch, heads, queries, total)
    dense = value.stride(3) == 1 and locations.stride()[3:] == (2, 1) and weights.stride(3) == 1
    require(fits and dense, f"(B, {heads}, Q, {total}) weights and locations, contiguous", locations, weights)
    out = torch.empty(batch, queries, heads * dim, dtype=value.dtype, device=value.device)
    if out.numel():
        _ms_deform_attn[(triton.cdiv(queries, BLOCK_Q), batch * heads)](
            value, locations, weights, out, queries, heads, *value.stride()[:3], *locations.stride()[:3],
            *weights.stride()[:3], HEIGHTS=tuple(height for height, _ in level_hw),
            WIDTHS=tuple(width for _, width in level_hw), POINTS=tuple(points), LEVELS=len(points), D=dim,
            BLOCK_D=triton.next_power_of_2(dim), BLOCK_Q=BLOCK_Q, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out


def _case(dtype: torch.dtype) -> CompileCase:
    pointer = pointer_to(dtype)
    strides = [f"{name}_{axis}" for name in ("locations", "weights") for axis in ("batch", "head", "query")]
    strides += ["value_batch", "value_row", "value_head"]
    return CompileCase(
        name=f"ms_deform_attn {pointer[1:]}",
        kernel=_ms_deform_attn,
        signature={
            **dict.fromkeys(("value", "locations", "weights", "out"), pointer),
            **dict.fromkeys(("queries", "heads", *strides), "i32"),
        },
        constants={
            "HEIGHTS": (80, 40, 20), "WIDTHS": (80, 40, 20), "POINTS": (3, 6, 3), "LEVELS": 3, "D": 32, "BLOCK_D": 32,
            "BLOCK_Q": BLOCK_Q,
        },
        aligned=("value", "locations", "weights", "out", "value_batch", "value_row", "value_head"),
        num_warps=NUM_WARPS,
    )  # fmt: skip


COMPILE_CASES = tuple(_case(dtype) for dtype in (torch.float16, torch.float32, torch.bfloat16))
