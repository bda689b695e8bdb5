"""Compiles all configurations of all kernels for all GPUs, without one: python benchmarks/gpu/resources.py [--check].

Writes RESOURCES.md beside this script and fails if a configuration breaks its limits. With --check it writes nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import triton

from vtk.kernels.cuda_cases import CompileCase, all_cases
from vtk.kernels.cuda_compile import Resources, compile_case, complaints

TABLE = Path(__file__).with_name("RESOURCES.md")
HEAD = f"""# Resources of the kernels

Written by `benchmarks/gpu/resources.py` with Triton {triton.__version__}, which compiles without a GPU: what each
kernel takes of one, by its machine code. Nothing here was measured on a card. Registers and spilled bytes are per
thread, shared memory is per program; the last two columns count instructions.

| kernel | GPU | warps | stages | registers | spilled | shared KiB | tensor core | async copies |
|---|---|---|---|---|---|---|---|---|
"""


def compiled() -> Iterator[tuple[CompileCase, int, Resources]]:
    for case in all_cases():
        for capability in case.capabilities:
            yield case, capability, compile_case(case, capability)


def row(case: CompileCase, capability: int, found: Resources) -> str:
    cells = (
        case.name,
        f"sm_{capability}",
        case.num_warps,
        case.num_stages,
        found.registers,
        found.stack,
        f"{found.shared / 1024:.1f}",
        found.tensor_core_instructions,
        found.async_copies,
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only test the limits")
    check = parser.parse_args().check
    rows, broken = [], []
    for case, capability, found in compiled():
        rows.append(row(case, capability, found))
        print(rows[-1], flush=True)
        broken += [f"{case.name} on sm_{capability}: {complaint}" for complaint in complaints(case, capability, found)]
    if not check:
        TABLE.write_text(HEAD + "\n".join(rows) + "\n")
    print("\n".join(broken) or f"{len(rows)} cubins within their limits", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
