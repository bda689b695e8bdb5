"""The harness itself: what it repairs, refuses, notices, and leaves as it was."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError


@triton.jit
def scale_rows(
    x: tl.tensor, out: tl.tensor, factor: tl.tensor, columns: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.sum(value, 0)
    tl.store(out + row * stride + column, value * factor + total * 0, mask=inside)


@triton.jit
def product(a: tl.tensor, b: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + i, tl.dot(tl.load(a + i), tl.load(b + i)))


@triton.jit
def add(a: tl.tensor, b: tl.tensor, out: tl.tensor, N: tl.constexpr) -> None:
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(a + i) + tl.load(b + i))


@triton.jit
def collide(out: tl.tensor, N: tl.constexpr) -> None:
    tl.store(out + tl.arange(0, N), tl.arange(0, N) + tl.program_id(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_casts_round_to_nearest_even(own_kernels: Any, buffer: Callable[..., Any], dtype: torch.dtype) -> None:
    x = torch.randn(3, 50).to(dtype)
    source, out = buffer(3, 50, dtype=dtype, gap=7), buffer(3, 50, dtype=dtype, gap=7)
    source.tensor.copy_(x)
    own_kernels.scale_rows[(3,)](source.tensor, out.tensor, 1.7, 50, 57, BLOCK=64)
    assert torch.equal(out.tensor, (x.float() * 1.7).to(dtype))
    assert out.intact()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_products_of_narrow_types_are_exact(own_kernels: Any, dtype: torch.dtype) -> None:
    a, b, out = torch.randn(16, 16).to(dtype), torch.randn(16, 16).to(dtype), torch.full((16, 16), torch.nan)
    own_kernels.product[(1,)](a, b, out, N=16)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=0, atol=1e-5)


def test_arithmetic_on_bfloat16_is_refused(own_kernels: Any) -> None:
    x = torch.randn(16).bfloat16()
    with pytest.raises(InterpreterError, match="widen to float32"):
        own_kernels.add[(1,)](x, x, torch.empty_like(x), N=16)


def test_an_access_outside_is_noticed(own_kernels: Any, buffer: Callable[..., Any]) -> None:
    out = buffer(2, 50, gap=7)
    with pytest.raises(InterpreterError, match="load outside of every argument"):
        own_kernels.scale_rows[(2,)](torch.randn(2, 50), out.tensor, 1.0, 50, 57, BLOCK=64)


def test_a_race_is_noticed(own_kernels: Any) -> None:
    own_kernels.collide[(1,)](torch.empty(16, dtype=torch.int32), N=16)
    with pytest.raises(AssertionError, match="race"):
        own_kernels.collide[(2,)](torch.empty(16, dtype=torch.int32), N=16)
