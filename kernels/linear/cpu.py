"""The compiled matrix product with stored weights."""

from __future__ import annotations

import torch

from vtk.kernels.cpu_checks import is_matrix, output, pointer, require
from vtk.kernels.cpu_library import library
from vtk.kernels.linear.reference import LinearMode
from vtk.kernels.packed_weight import FORMAT_NUMBERS, PackedWeight


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    mode: LinearMode = "exact",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `reference.linear`. In both modes a row's bits depend on that row alone, not on T or on the threads.

    exact: one chain of fused multiply-adds per output in ascending k (on processors without them, multiply and add).
    quantized: 8-bit integer dot products per 32 columns, summed in float32 in ascending order.

    Floor at (T, 576) x (3072, 576), q4_1: 1.1 MB of weights and 3.5 MFLOP a row; T = 1 is bound by memory,
    T = 512 by 1.8 GFLOP.
    """
    rows, depth = x.shape
    require(is_matrix(x) and depth == weight.in_features, f"x of (T, {weight.in_features}) float32", x)
    require(bias is None or bias.shape == (weight.out_features,), f"a bias of ({weight.out_features},)", bias)
    require(mode in ("exact", "quantized"), "a mode of exact or quantized")
    result = output(out, rows, weight.out_features)
    library().vtk_linear(
        x.data_ptr(),
        x.stride(0),
        rows,
        depth,
        weight.out_features,
        FORMAT_NUMBERS[weight.format],
        weight.values.data_ptr(),
        weight.scales.data_ptr(),
        pointer(bias),
        mode == "quantized",
        result.data_ptr(),
        weight.out_features,
    )
    return result
