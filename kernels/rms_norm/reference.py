"""Root-mean-square normalization (Zhang & Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis of x (T, H) float32.

    With `residual` (T, H), x is first added to it **in place** and the sum is normalized: the pre-norm residual stream.
    """
    if residual is not None:
        x = residual.add_(x)
    result = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    return result if out is None else out.copy_(result)
