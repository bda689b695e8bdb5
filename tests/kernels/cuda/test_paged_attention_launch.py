"""How paged attention is launched: on tensors without values, so by their shapes alone, as a CUDA graph needs it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.paged_attention.cuda import SPLIT, paged_attention
from vtk.kernels.paged_attention.cuda_kernels import attend


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def launched(device: Any, rows: int, batch: int, table: int, **options: Any) -> list[tuple[str, tuple[int, int, int]]]:
    """32 query and 8 KV heads of 64, blocks of 16; the query is a slice of a projection."""
    before = len(device.launches)
    cache = LayerCache(meta(40, 8, 64, 16), meta(40, 8, 16, 64))
    sizes = [meta(size, dtype=torch.int32) for size in (batch + 1, batch)]
    query = meta(rows, 48, 64)[:, :32]
    out = paged_attention(query, cache, *sizes, meta(batch, table, dtype=torch.int32), 0.1, **options)
    assert out.shape == (rows, 32, 64)
    return [(launch.name, launch.grid) for launch in device.launches[before:]]


@pytest.mark.parametrize("capability", [80, 90])
def test_launches_follow_from_shapes(capability: int, fake_cuda: Callable[[int], Any]) -> None:
    with fake_cuda(capability) as device:
        short, long = SPLIT // 16, 4 * SPLIT // 16
        assert launched(device, 6, 6, short) == [("attend", (6 // 4 + 6, 8, 1))]
        assert launched(device, 6, 6, long) == [("attend", (6 // 4 + 6, 8, 4)), ("merge_splits", (6, 32, 1))]
        assert launched(device, 100, 6, long) == [("attend", (100 // 32 + 6, 8, 1))]
        assert launched(device, 0, 6, long) == []
        assert launched(device, 6, 6, short, lse=meta(6, 32, dtype=torch.float32)) == [("attend", (7, 8, 1))]
        shared = {launch.name: launch.shared for launch in device.launches}
    assert 0 < shared["attend"] <= 99 * 1024  # what a program of the smallest of these GPUs can have


def test_the_same_shapes_are_compiled_once(fake_cuda: Callable[[int], Any]) -> None:
    """Batch sizes and table widths are arguments, no constants: another one starts no compiler."""
    with fake_cuda(90) as device:
        launched(device, 6, 6, 16)
        kernels = attend.device_caches[90][0]
        before = len(kernels)
        launched(device, 7, 7, 9)
        launched(device, 37, 37, 16)
        assert len(kernels) == before
