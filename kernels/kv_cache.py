"""The paged key-value memory of one layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

KV_DTYPES = (torch.float32, torch.float16, torch.int8)  # those that the compiled CPU kernels know, in their order
GPU_KV_DTYPES = (*KV_DTYPES, torch.bfloat16, torch.float8_e4m3fn)


@dataclass(frozen=True, eq=False)
class LayerCache:
    """Blocks of `block_size` positions; the tensors are written in place.

    key: (num_blocks, kv_heads, head_dim, block_size), positions innermost, so that the scores of neighboring positions
    are computed side by side. value: (num_blocks, kv_heads, block_size, head_dim). Both of one of GPU_KV_DTYPES;
    int8 comes with key_scales and value_scales (num_blocks, kv_heads, block_size) float32, one per position and head.
    Slot s is block `s // block_size`, offset `s % block_size`.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None

    @classmethod
    def allocate(
        cls,
        num_blocks: int,
        kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> LayerCache:
        """Uninitialized memory: an op reads only slots that were stored. ValueError for other dtypes."""
        if dtype not in GPU_KV_DTYPES:
            raise ValueError(f"a KV cache holds {', '.join(map(str, GPU_KV_DTYPES))}; got {dtype}")
        key = torch.empty(num_blocks, kv_heads, head_dim, block_size, dtype=dtype, device=device)
        value = torch.empty(num_blocks, kv_heads, block_size, head_dim, dtype=dtype, device=device)
        if dtype != torch.int8:
            return cls(key, value)
        scales = torch.empty(2, num_blocks, kv_heads, block_size, device=device)
        return cls(key, value, scales[0], scales[1])

    @property
    def num_blocks(self) -> int:
        return self.value.shape[0]

    @property
    def kv_heads(self) -> int:
        return self.value.shape[1]

    @property
    def block_size(self) -> int:
        return self.value.shape[2]

    @property
    def head_dim(self) -> int:
        return self.value.shape[3]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Every tensor with one row per block."""
        optional = (self.key_scales, self.value_scales)
        return (self.key, self.value, *(tensor for tensor in optional if tensor is not None))
