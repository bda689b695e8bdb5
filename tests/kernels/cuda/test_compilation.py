"""Launches on a device that is not there and the compiler ahead of time, in the process that interprets other tests."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from vtk.kernels import cuda_cases, cuda_compile


@triton.jit
def sum_rows(
    x: tl.tensor, out: tl.tensor, factor: tl.tensor, columns: tl.tensor, stride: tl.tensor, BLOCK: tl.constexpr
) -> None:
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + column, mask=column < columns, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(value, 0) * factor)


POINTERS = {"x": "*fp32", "out": "*fp32", "factor": "fp32", "columns": "i32", "stride": "i32"}
CASE = cuda_cases.CompileCase("sum_rows", sum_rows, POINTERS, {"BLOCK": 64}, aligned=("x", "out"))


@pytest.mark.parametrize("capability", cuda_cases.CAPABILITIES)
def test_it_compiles_after_an_interpretation(
    capability: int, interpreting: Callable[[], Any], fake_cuda: Callable[[int], Any]
) -> None:
    x, out = torch.randn(3, 64), torch.empty(3)
    with interpreting() as interpreted:
        interpreted(sum_rows)[(3,)](x, out, 2.0, 50, 64, BLOCK=64)
    torch.testing.assert_close(out, x[:, :50].sum(1) * 2)
    with fake_cuda(capability) as device:
        sum_rows[(3,)](x.to("meta"), out.to("meta"), 2.0, 50, 64, BLOCK=64)
    assert [(launch.name, launch.grid) for launch in device.launches] == [("sum_rows", (3, 1, 1))]
    resources = cuda_compile.compile_case(CASE, capability)
    assert 0 < resources.registers < 64
    assert resources.stack == 0
    assert resources.tensor_core_instructions == 0
