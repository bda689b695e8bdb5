"""Copy whole KV blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from vtk.kernels.kv_cache import LayerCache


def copy_blocks(caches: Sequence[LayerCache], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks (source, target) in every layer. All sources are read before any target is written."""
    if not pairs:
        return
    sources, targets = torch.tensor(pairs).unbind(1)
    for cache in caches:
        for tensor in cache.tensors:
            tensor[targets] = tensor[sources]
