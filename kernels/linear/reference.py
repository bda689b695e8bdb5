"""y = x W^T + b with W as stored, in two modes."""

from __future__ import annotations

from typing import Literal

import torch

from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

LinearMode = Literal["exact", "quantized"]
ACTIVATION_BLOCK = 32


def quantize_activations(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric 8-bit values per row and 32 columns: (T, K/32, 32) int8 in -127..127 and scales (T, K/32) float32."""
    groups = x.reshape(x.shape[0], -1, ACTIVATION_BLOCK)
    largest = groups.abs().amax(-1)
    inverse = torch.where(largest > 0, 127 / largest, 0)
    return (groups * inverse[:, :, None]).round().to(torch.int8), largest / 127


def linear(
    x: torch.Tensor,
    weight: StoredWeight,
    bias: torch.Tensor | None = None,
    mode: LinearMode = "exact",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x (T, K) float32 -> (T, N) float32.

    exact: float32 arithmetic on the values of the weights. quantized: x is rounded to 8 bits per row and 32 columns
    first; it says nothing for float weights, which stay exact, and needs K to be a multiple of 32.
    """
    if mode == "quantized" and weight.format not in FLOAT_FORMATS:
        values, scales = quantize_activations(x)
        x = (values * scales[:, :, None]).reshape(x.shape)
    result = torch.nn.functional.linear(x, weight.dequantize(), bias)
    return result if out is None else out.copy_(result)
