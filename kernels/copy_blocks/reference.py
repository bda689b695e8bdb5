"""Copy whole KV blocks: NumPy arrays and tensors are indexed alike."""

from __future__ import annotations

from collections.abc import Sequence

from vtk.kernels.arrays import A
from vtk.kernels.kv_cache import LayerCache


def copy_blocks(caches: Sequence[LayerCache[A]], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks (source, target) in every layer. All sources are read before any target is written."""
    if not pairs:
        return
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    for cache in caches:
        for tensor in cache.tensors:
            tensor[targets] = tensor[sources]
