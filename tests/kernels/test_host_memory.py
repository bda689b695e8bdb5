"""Where the arrays of the compiled kernels lie, and what they cost."""

import resource
from pathlib import Path

import numpy as np
import pytest

from vtk.kernels.host_cache import allocate_cache
from vtk.kernels.host_memory import ALIGNMENT, HostArray, address, aligned_empty, untouched_zeros


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 5), (300, 301)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_arrays_begin_where_vectors_do(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    for array in (aligned_empty(shape, dtype), untouched_zeros(shape, dtype)):
        assert (array.shape, array.dtype) == (shape, dtype)
        assert array.ctypes.data % ALIGNMENT == 0 or not array.size
        array[...] = 1


def test_an_array_knows_where_it_lies() -> None:
    array = aligned_empty((4, 6), np.float32)
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    for whole in (array, plain.view(HostArray), plain):
        for part in (whole, whole[1:], whole[:, 2:4], whole.reshape(2, 12)[1], whole[[0, 2]], whole + 1):
            assert address(part) == part.ctypes.data
            assert address(part) == part.ctypes.data, "asked again"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
def test_a_cache_takes_memory_block_by_block() -> None:
    before = resident_bytes()
    cache = allocate_cache(4096, 4, 16, 64)  # 128 MiB
    assert sum(tensor.nbytes for tensor in cache.tensors) == 128 << 20
    assert resident_bytes() - before < 4 << 20
    for tensor in cache.tensors:
        assert not tensor[::1000].any()
        tensor[10:20] = 1
    assert resident_bytes() - before < 8 << 20
