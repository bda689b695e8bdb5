"""The operations of a language model, as one value that a runner chooses at load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy.typing as npt

from vtk.kernels.arrays import A
from vtk.kernels.kv_cache import KvDtype, LayerCache
from vtk.kernels.weights import StoredWeight

W = TypeVar("W")
LinearMode = Literal["exact", "quantized"]


class Ops(Protocol[W, A]):
    """`vtk.kernels.reference_ops` (plain torch), `vtk.kernels.cpu_ops` (compiled, over NumPy arrays) or `CudaOps`.

    Each has its own weight W and array A. Shapes, and what is written in place, are in the docstrings of
    `vtk.kernels.<op>.reference`. Float arrays are float32 on the CPU; `out`, if given, is filled and returned.
    """

    def pack(self, weight: StoredWeight) -> W:
        """The weight as `linear` and `embedding` take it; the values are unchanged."""
        ...

    def array(self, values: npt.NDArray[Any]) -> A:
        """Values of the host as an operand; on the CPU the same memory."""
        ...

    def empty(self, rows: int, columns: int) -> A:
        """Uninitialized activations."""
        ...

    def allocate_cache(
        self, num_blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: KvDtype = "float32"
    ) -> LayerCache[A]:
        """KV memory of a layer. ValueError for a type that these operations do not read."""
        ...

    def linear(self, x: A, weight: W, bias: A | None = None, mode: LinearMode = "exact", out: A | None = None) -> A: ...

    def embedding(self, token_ids: A, weight: W, out: A | None = None) -> A: ...

    def rms_norm(self, x: A, weight: A, eps: float, residual: A | None = None, out: A | None = None) -> A: ...

    def silu_and_mul(self, gate_up: A, out: A | None = None) -> A: ...

    def rope_and_cache(
        self,
        query: A,
        key: A,
        value: A,
        cos: A,
        sin: A,
        positions: A,
        slot_mapping: A,
        cache: LayerCache[A],
        query_norm: A | None = None,
        key_norm: A | None = None,
        eps: float = 1e-6,
    ) -> None: ...

    def paged_attention(
        self,
        query: A,
        cache: LayerCache[A],
        cu_seqlens: A,
        seq_lens: A,
        block_tables: A,
        scale: float,
        out: A | None = None,
    ) -> A: ...

    def copy_blocks(self, caches: Sequence[LayerCache[A]], pairs: Sequence[tuple[int, int]]) -> None: ...
