"""Compiles a kernel for a GPU that is not there, and reads what it will take of that GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from vtk.kernels.cuda_cases import CompileCase

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
TENSOR_CORES = ("HMMA", "IMMA", "QMMA", "HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")
ASYNC_COPIES = ("LDGSTS", "UTMALDG", "UBLKCP")

# Of one program, by the CUDA C++ Programming Guide's table of compute capabilities.
SHARED_KIB = {80: 163, 89: 99, 90: 227, 100: 227}


@dataclass(frozen=True)
class Resources:
    """Of one cubin: registers and stack bytes per thread, bytes of shared memory per program, instructions by kind."""

    registers: int
    stack: int
    shared: int
    tensor_core_instructions: int
    async_copies: int
    local_accesses: int


def compile_case(case: CompileCase, capability: int) -> Resources:
    """Compiles for one compute capability (90 is an H100). Raises what Triton raises for a kernel it cannot compile."""
    names = case.kernel.arg_names
    assert set(names) == {*case.signature, *case.constants}, (
        f"{case.name} does not tell every argument, or one too many"
    )
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in case.aligned}
    source = ASTSource(fn=case.kernel, signature=signature, constexprs=dict(case.constants), attrs=aligned)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return read_resources(compiled.asm["cubin"], compiled.metadata.shared)


def complaints(case: CompileCase, capability: int, resources: Resources) -> list[str]:
    """Where a compiled case breaks its own limits or the GPU's; empty if it keeps them."""
    shared = SHARED_KIB[capability]
    broken = {
        f"{resources.registers} registers, at most {case.max_registers}": resources.registers > case.max_registers,
        f"{resources.stack} bytes of stack, at most {case.max_spills}": resources.stack > case.max_spills,
        f"{resources.shared / 1024} KiB of shared memory, at most {shared}": resources.shared > shared * 1024,
        "no tensor core instruction": case.tensor_cores and not resources.tensor_core_instructions,
        "no asynchronous copy": case.async_copies and not resources.async_copies,
    }
    return [complaint for complaint, applies in broken.items() if applies]


def read_resources(cubin: bytes, shared: int) -> Resources:
    """What the driver would reserve for a cubin. `shared` is the dynamic part, which the cubin does not tell."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = _run("cuobjdump", "-res-usage", file.name)
        code = _run("nvdisasm", "-c", file.name)
    found = re.search(r"REG:(\d+).*?STACK:(\d+)", usage)
    assert found is not None, usage
    return Resources(
        registers=int(found[1]),
        stack=int(found[2]),
        shared=shared,
        tensor_core_instructions=_count(code, TENSOR_CORES),
        async_copies=_count(code, ASYNC_COPIES),
        local_accesses=_count(code, ("LDL", "STL")),
    )


def _run(tool: str, *arguments: str) -> str:
    return subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


def _count(code: str, instructions: tuple[str, ...]) -> int:
    return len(re.findall(rf"\b(?:{'|'.join(instructions)})\b", code))
