"""y = x W^T + b with W as stored, in two modes."""

from __future__ import annotations

import torch

from vtk.kernels.int8_rounding import round_to_int8
from vtk.kernels.ops import LinearMode
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

ACTIVATION_BLOCK = 32


def quantize_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric 8-bit values per row and 32 columns, zero-padded: (T, groups, 32) int8 and (T, groups) scales."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % ACTIVATION_BLOCK))
    return round_to_int8(padded.reshape(x.shape[0], padded.shape[1] // ACTIVATION_BLOCK, ACTIVATION_BLOCK))


def linear(
    x: torch.Tensor,
    weight: StoredWeight,
    bias: torch.Tensor | None = None,
    mode: LinearMode = "exact",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x (T, K) float32 -> (T, N) float32.

    exact: float32 arithmetic on the values of the weights. quantized: x is rounded to 8 bits per row and 32 columns
    first (a last, shorter group if K is no multiple of 32); float weights stay exact.
    """
    if mode == "quantized" and weight.format not in FLOAT_FORMATS:
        values, scales = quantize_activations(x)
        x = (values * scales[:, :, None]).flatten(1)[:, : x.shape[1]]
    result = torch.nn.functional.linear(x, torch.from_numpy(weight.dequantize()), bias)
    return result if out is None else out.copy_(result)
