"""The compiled SwiGLU activation."""

from __future__ import annotations

from vtk.kernels.cpu_checks import Floats, is_rows, output, require
from vtk.kernels.cpu_library import library
from vtk.kernels.host_memory import address


def silu_and_mul(gate_up: Floats, out: Floats | None = None) -> Floats:
    """As `reference.silu_and_mul`, over contiguous rows.

    Floor at 32 x 2 x 1536: 590 KB and about 1 MFLOP (an exponential is some 15).
    """
    rows, both = gate_up.shape
    require(is_rows(gate_up) and both % 2 == 0, "contiguous (T, 2F) float32", gate_up)
    result = output(out, rows, both // 2)
    library().vtk_silu_and_mul(address(gate_up), rows, both // 2, address(result))
    return result
