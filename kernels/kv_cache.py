"""The paged key-value memory of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, cast, get_args

from vtk.kernels.arrays import A
from vtk.kernels.host_memory import address

KvDtype = Literal["float32", "float16", "int8", "bfloat16", "fp8"]  # fp8 is e4m3
GPU_KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
CPU_KV_DTYPES: tuple[KvDtype, ...] = GPU_KV_DTYPES[:3]  # in the order of their numbers in the compiled kernels
VALUE_BYTES: dict[KvDtype, int] = {"float32": 4, "float16": 2, "int8": 1, "bfloat16": 2, "fp8": 1}


@dataclass(frozen=True, eq=False)
class LayerCache(Generic[A]):
    """Blocks of `block_size` positions; the arrays are written in place. `Ops.allocate_cache` makes one.

    key: (num_blocks, kv_heads, head_dim, block_size), positions innermost, so that the scores of neighboring positions
    are computed side by side. value: (num_blocks, kv_heads, block_size, head_dim). Both of one of GPU_KV_DTYPES;
    int8 comes with key_scales and value_scales (num_blocks, kv_heads, block_size) float32, one per position and head.
    Slot s is block `s // block_size`, offset `s % block_size`. An op reads only slots that were stored.
    """

    key: A
    value: A
    key_scales: A | None = None
    value_scales: A | None = None

    @property
    def num_blocks(self) -> int:
        return int(self.value.shape[0])

    @property
    def kv_heads(self) -> int:
        return int(self.value.shape[1])

    @property
    def block_size(self) -> int:
        return int(self.value.shape[2])

    @property
    def head_dim(self) -> int:
        return int(self.value.shape[3])

    @property
    def tensors(self) -> tuple[A, ...]:
        """Everything with one row per block."""
        arrays = (self.key, self.value, self.key_scales, self.value_scales)
        return tuple(array for array in arrays if array is not None)

    @cached_property
    def host_arguments(self) -> tuple[int, int | None, int | None, int | None, int | None]:
        """Of NumPy arrays, once: the number of the type in the compiled kernels, the addresses of the four fields."""
        arrays = (self.key, self.value, self.key_scales, self.value_scales)
        key, value, key_scales, value_scales = (
            None if array is None else address(cast("Any", array)) for array in arrays
        )
        number = CPU_KV_DTYPES.index(cast("KvDtype", str(self.key.dtype)))
        return number, key, value, key_scales, value_scales


def check_kv_dtype(dtype: KvDtype, known: tuple[KvDtype, ...]) -> None:
    """ValueError for a type that is none of those."""
    if dtype not in known:
        raise ValueError(f"a KV cache holds {', '.join(known)}; got {dtype}")
