"""The one way that activations and KV entries become 8-bit."""

from __future__ import annotations

import torch

SMALLEST = 1e-30  # groups below it are zero: 127 / largest would overflow


def round_to_int8(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Symmetric over the last axis: int8 values in -127..127, rounded half to even, and scales without that axis."""
    largest = groups.abs().amax(-1)
    full = torch.full_like(largest, 127)
    inverse = torch.where(largest > SMALLEST, full / largest, 0)
    return (groups * inverse[..., None]).round().to(torch.int8), largest / full
