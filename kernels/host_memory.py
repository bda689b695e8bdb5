"""Arrays in the memory of the host, as the compiled kernels like them."""

from __future__ import annotations

import math
import mmap
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64  # bytes of the widest vector, and of a cache line
FLOAT32 = np.dtype(np.float32)


class HostArray(np.ndarray[Any, np.dtype[Any]]):
    """An array that is asked for its address once: NumPy takes a microsecond, and a step passes a thousand arrays."""

    @cached_property
    def address(self) -> int:
        """Of the first element."""
        return self.ctypes.data


def address(array: npt.NDArray[Any]) -> int:
    """Of the first element."""
    return array.address if isinstance(array, HostArray) else array.ctypes.data


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> HostArray:
    """Uninitialized; begins at a multiple of ALIGNMENT."""
    kind = np.dtype(dtype)
    count = math.prod(shape) * kind.itemsize
    memory = np.empty(count + ALIGNMENT, np.uint8)
    start = memory.ctypes.data
    place = -(-start // ALIGNMENT) * ALIGNMENT
    result: HostArray = HostArray(shape, kind, memory, place - start)
    result.address = place
    return result


def untouched_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros, a multiple of ALIGNMENT in address, whose pages take no memory until they are written.

    Mapped by hand: NumPy asks for huge pages in large arrays, and then the first byte costs 2 MB.
    """
    kind = np.dtype(dtype)
    count = math.prod(shape)
    memory = mmap.mmap(-1, max(1, count * kind.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, kind, count).reshape(shape)


def mapped_rows(rows: int, columns: int) -> HostArray:
    """(rows, columns) float32 with pages of its own: what is not used takes no memory, and the heap gets no holes."""
    return untouched_zeros((rows, columns), FLOAT32).view(HostArray)
