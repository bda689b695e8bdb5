"""The compiled matrix product with stored weights."""

from __future__ import annotations

from vtk.kernels.cpu_checks import Floats, is_matrix, mismatch, pointer, row_stride
from vtk.kernels.cpu_library import library
from vtk.kernels.host_memory import FLOAT32, address, aligned_empty
from vtk.kernels.ops import LinearMode
from vtk.kernels.packed_weight import PackedWeight


def linear(
    x: Floats,
    weight: PackedWeight,
    bias: Floats | None = None,
    mode: LinearMode = "exact",
    out: Floats | None = None,
) -> Floats:
    """As `reference.linear`; `out` may be some columns of a wider array.

    In both modes a row's bits depend on that row alone, not on T or on the threads.

    exact: one chain of fused multiply-adds per output in ascending k (on processors without them, multiply and add).
    quantized: 8-bit integer dot products per 32 columns, summed in float32 in ascending order.

    Floor at (T, 576) x (3072, 576), q4_1: 1.1 MB of weights and 3.5 MFLOP a row; T = 1 is bound by memory,
    T = 512 by 1.8 GFLOP.
    """
    rows, depth = x.shape
    shape = (rows, weight.out_features)
    if not is_matrix(x) or depth != weight.in_features:
        raise mismatch(f"x of (T, {weight.in_features}) float32", x)
    if bias is not None and bias.shape != shape[1:]:
        raise mismatch(f"a bias of ({weight.out_features},)", bias)
    if mode not in ("exact", "quantized"):
        raise mismatch("a mode of exact or quantized")
    result = aligned_empty(shape, FLOAT32) if out is None else out
    if not is_matrix(result) or result.shape != shape:
        raise mismatch(f"an output of contiguous float32 {shape}", result)
    format_number, values, scales = weight.arguments
    library().vtk_linear(
        address(x),
        row_stride(x),
        rows,
        depth,
        weight.out_features,
        format_number,
        values,
        scales,
        pointer(bias),
        mode == "quantized",
        address(result),
        row_stride(result),
    )
    return result
