"""What of a Triton kernel is compiled ahead of time, and what the result may cost."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CAPABILITIES = (80, 89, 90, 100)  # compute capability times ten: A100, L40/RTX 40, H100/H200, B200
TRITON_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True, eq=False)
class CompileCase:
    """One configuration of a kernel as its launcher starts it, with the limits of its resources.

    signature: the arguments that are no constants: `*bf16` is a pointer, `i32` or `fp32` a number.
    aligned: those of them that are multiples of 16, as addresses of PyTorch's allocator and usual strides are.
    max_spills counts bytes per thread on the stack; async_copies asks for copies that pass by the registers.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, object]
    aligned: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    tensor_cores: bool = False
    async_copies: bool = False
    max_registers: int = 255
    max_spills: int = 0
    capabilities: tuple[int, ...] = CAPABILITIES


def all_cases() -> tuple[CompileCase, ...]:
    """The COMPILE_CASES of every `kernels/<op>/cuda.py`, which has to declare some."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("*/cuda.py"))
    modules = [importlib.import_module(f"vtk.kernels.{folder}.cuda") for folder in folders]
    return tuple(case for module in modules for case in module.COMPILE_CASES)


def pointer_to(dtype: torch.dtype) -> str:
    """The signature of a pointer: `*bf16` for torch.bfloat16."""
    return "*" + TRITON_TYPES[dtype]
