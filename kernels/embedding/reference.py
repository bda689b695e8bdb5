"""Rows of an embedding table."""

from __future__ import annotations

import torch

from vtk.kernels.weights import StoredWeight


def embedding(token_ids: torch.Tensor, weight: StoredWeight, out: torch.Tensor | None = None) -> torch.Tensor:
    """token_ids (T,) int64 in 0..N-1 -> (T, K) float32. IndexError for an id outside the table."""
    result = torch.from_numpy(weight.dequantize(token_ids.numpy()))
    return result if out is None else out.copy_(result)
