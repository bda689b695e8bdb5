"""SwiGLU's activation (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch


def silu_and_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """(T, 2F) float32, gates then ups -> `silu(gate) * up` (T, F)."""
    gate, up = gate_up.chunk(2, dim=-1)
    result = torch.nn.functional.silu(gate) * up
    return result if out is None else out.copy_(result)
