"""The compiled embedding lookup."""

from __future__ import annotations

import torch

from vtk.kernels.cpu_checks import output
from vtk.kernels.cpu_library import library
from vtk.kernels.packed_weight import FORMAT_NUMBERS, PackedWeight


def embedding(token_ids: torch.Tensor, weight: PackedWeight, out: torch.Tensor | None = None) -> torch.Tensor:
    """As `reference.embedding`; the table is the packed weight that `linear` takes, so a tied one is kept once.

    Floor at 32 x 576, q4_1: 11.5 KB of table; the panel's other 15 rows are read with it (184 KB).
    """
    ids = token_ids.contiguous()
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"expected (T,) int64 token ids; got {tuple(ids.shape)} {ids.dtype}")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < weight.out_features:
        raise IndexError(f"token ids must be in 0..{weight.out_features - 1}; got {int(ids.min())}..{int(ids.max())}")
    result = output(out, len(ids), weight.in_features)
    library().vtk_embedding(
        ids.data_ptr(),
        len(ids),
        weight.in_features,
        FORMAT_NUMBERS[weight.format],
        weight.values.data_ptr(),
        weight.scales.data_ptr(),
        result.data_ptr(),
    )
    return result
