"""The compiled embedding lookup."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vtk.kernels.cpu_checks import Floats, output
from vtk.kernels.cpu_library import library
from vtk.kernels.host_memory import address
from vtk.kernels.packed_weight import PackedWeight


def embedding(token_ids: npt.NDArray[np.int64], weight: PackedWeight, out: Floats | None = None) -> Floats:
    """As `reference.embedding`; the table is the packed weight that `linear` takes, so a tied one is kept once.

    Floor at 32 x 576, q4_1: 11.5 KB of table; the panel's other 15 rows are read with it (184 KB).
    """
    ids = np.ascontiguousarray(token_ids)
    if ids.dtype != np.int64 or token_ids.ndim != 1:
        raise ValueError(f"expected (T,) int64 token ids; got {token_ids.shape} {token_ids.dtype}")
    if len(ids) and not 0 <= ids.min() <= ids.max() < weight.out_features:
        raise IndexError(f"token ids must be in 0..{weight.out_features - 1}; got {ids.min()}..{ids.max()}")
    result = output(out, len(ids), weight.in_features)
    library().vtk_embedding(address(ids), len(ids), weight.in_features, *weight.arguments, address(result))
    return result
