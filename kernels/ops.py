"""The operations of a language model, as one value that a runner chooses at load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import torch

from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.linear.reference import LinearMode
from vtk.kernels.weights import StoredWeight

W = TypeVar("W")


class Ops(Protocol[W]):
    """`vtk.kernels.reference_ops` (plain torch) or `vtk.kernels.cpu_ops` (compiled), each with its weight.

    Shapes, and what is written in place, are in the docstrings of `vtk.kernels.<op>.reference`. Float tensors are
    float32 on the CPU; `out`, if given, is filled and returned.
    """

    def pack(self, weight: StoredWeight) -> W:
        """The weight as `linear` and `embedding` take it; the values are unchanged."""
        ...

    def linear(
        self,
        x: torch.Tensor,
        weight: W,
        bias: torch.Tensor | None = None,
        mode: LinearMode = "exact",
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def embedding(self, token_ids: torch.Tensor, weight: W, out: torch.Tensor | None = None) -> torch.Tensor: ...

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        residual: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def silu_and_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor: ...

    def rope_and_cache(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        positions: torch.Tensor,
        slot_mapping: torch.Tensor,
        cache: LayerCache,
        query_norm: torch.Tensor | None = None,
        key_norm: torch.Tensor | None = None,
        eps: float = 1e-6,
    ) -> None: ...

    def paged_attention(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        cu_seqlens: torch.Tensor,
        seq_lens: torch.Tensor,
        block_tables: torch.Tensor,
        scale: float,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor: ...

    def copy_blocks(self, caches: Sequence[LayerCache], pairs: Sequence[tuple[int, int]]) -> None: ...
