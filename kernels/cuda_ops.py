"""Every operation on a GPU: Triton kernels, and cuBLAS for products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from vtk.kernels.copy_blocks.cuda import copy_blocks
from vtk.kernels.cpu_checks import require
from vtk.kernels.embedding.cuda import embedding
from vtk.kernels.kv_cache import KvDtype, LayerCache
from vtk.kernels.ops import LinearMode
from vtk.kernels.paged_attention.cuda import paged_attention
from vtk.kernels.rms_norm.cuda import rms_norm
from vtk.kernels.rope_and_cache.cuda import rope_and_cache
from vtk.kernels.silu_and_mul.cuda import silu_and_mul
from vtk.kernels.torch_cache import allocate_cache
from vtk.kernels.weights import StoredWeight


@dataclass(frozen=True)
class CudaOps:
    """`Ops` whose activations are `dtype` (float32, float16 or bfloat16) on `device`.

    Products run on weights that were decoded to `dtype` at load: blocks of 4 or 8 bits take 16 in memory, and values
    that `dtype` does not hold are rounded to it. Sums are float32. cuBLAS picks its algorithm by shape, so the last
    bits of a row may depend on how many others there are. Not yet run on a GPU.
    """

    device: torch.device
    dtype: torch.dtype

    copy_blocks = staticmethod(copy_blocks)
    embedding = staticmethod(embedding)
    paged_attention = staticmethod(paged_attention)
    rms_norm = staticmethod(rms_norm)
    rope_and_cache = staticmethod(rope_and_cache)
    silu_and_mul = staticmethod(silu_and_mul)

    def pack(self, weight: StoredWeight) -> torch.Tensor:
        """(N, K) of `dtype` on the device."""
        return torch.from_numpy(weight.dequantize()).to(self.device, self.dtype)

    def array(self, values: npt.NDArray[Any]) -> torch.Tensor:
        """The values on the device."""
        return torch.from_numpy(values).to(self.device)

    def empty(self, rows: int, columns: int) -> torch.Tensor:
        """See `Ops.empty`."""
        return torch.empty(rows, columns, dtype=self.dtype, device=self.device)

    def allocate_cache(
        self, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: KvDtype = "float32"
    ) -> LayerCache[torch.Tensor]:
        """See `Ops.allocate_cache`."""
        return allocate_cache(num_blocks, kv_heads, block_size, head_dim, dtype, self.device)

    def linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        mode: LinearMode = "exact",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `reference.linear` in its exact mode, the only one; `bias` may be float32."""
        require(mode == "exact", "mode 'exact' on a GPU", x)
        if bias is None:
            return torch.mm(x, weight.t(), out=out)
        return torch.addmm(bias.to(x.dtype), x, weight.t(), out=out)
