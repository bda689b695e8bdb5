"""The paged key-value memory of one layer as tensors."""

from __future__ import annotations

import torch

from vtk.kernels.kv_cache import GPU_KV_DTYPES, KvDtype, LayerCache, check_kv_dtype

TORCH_DTYPES: dict[KvDtype, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "int8": torch.int8, "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}  # fmt: skip


def kv_name(dtype: torch.dtype) -> KvDtype:
    """Of a type that a cache may hold. ValueError for any other."""
    for name, known in TORCH_DTYPES.items():
        if known == dtype:
            return name
    raise ValueError(f"a KV cache holds {', '.join(TORCH_DTYPES)}; got {dtype}")


def allocate_cache(
    num_blocks: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    dtype: KvDtype = "float32",
    device: torch.device | None = None,
) -> LayerCache[torch.Tensor]:
    """Uninitialized memory on `device`, the CPU by default."""
    check_kv_dtype(dtype, GPU_KV_DTYPES)
    kind = TORCH_DTYPES[dtype]
    key = torch.empty(num_blocks, kv_heads, head_dim, block_size, dtype=kind, device=device)
    value = torch.empty(num_blocks, kv_heads, block_size, head_dim, dtype=kind, device=device)
    if dtype != "int8":
        return LayerCache(key, value)
    scales = torch.empty(2, num_blocks, kv_heads, block_size, device=device)
    return LayerCache(key, value, scales[0], scales[1])
