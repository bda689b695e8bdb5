"""A decoder over paged KV on the CPU, with whichever operations were chosen when it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from vtk.errors import UsageError
from vtk.kernels.arrays import A
from vtk.kernels.kv_cache import VALUE_BYTES, KvDtype, LayerCache
from vtk.kernels.ops import Ops, W
from vtk.llm_serving.core.step_inputs import StepInputs
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.step_arrays import StepArrays
from vtk.llm_serving.runner.base import HiddenStates, Logits

SCALE_BYTES = 4


def block_bytes(config: ModelConfig, block_size: int, kv_dtype: KvDtype) -> int:
    """Bytes of one block in all layers, int8 with its scales."""
    vectors = 2 * config.num_kv_heads * block_size
    scales = vectors * SCALE_BYTES if kv_dtype == "int8" else 0
    return config.num_layers * (vectors * config.head_dim * VALUE_BYTES[kv_dtype] + scales)


def num_blocks_within(
    budget: int, config: ModelConfig, block_size: int, kv_dtype: KvDtype, hint: str = "Raise cpu_kvcache_space."
) -> int:
    """How many blocks `budget` bytes hold. UsageError if not even one."""
    size = block_bytes(config, block_size, kv_dtype)
    if budget < size:
        raise UsageError(
            f"The KV cache may take {budget} bytes and one block of {block_size} tokens takes {size}.",
            hint=hint,
        )
    return budget // size


@dataclass(frozen=True)
class RunnerSizes:
    """How much KV a runner holds, and in which type."""

    num_blocks: int
    block_size: int
    kv_dtype: KvDtype


class DecoderRunner(Generic[W, A]):
    """ModelRunner over one model and one set of operations."""

    device = "cpu"

    def __init__(self, model: Decoder[W, A], ops: Ops[W, A], backend: str, sizes: RunnerSizes) -> None:
        config = model.config
        self.backend = backend
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_blocks = sizes.num_blocks
        self.block_size = sizes.block_size
        self._model: Decoder[W, A] = model
        self._ops: Ops[W, A] = ops
        self._caches: list[LayerCache[A]] = [
            ops.allocate_cache(sizes.num_blocks, config.num_kv_heads, sizes.block_size, config.head_dim, sizes.kv_dtype)
            for _ in range(config.num_layers)
        ]

    def forward(self, inputs: StepInputs, hidden: HiddenStates | None = None) -> Logits:
        """See ModelRunner.forward."""
        self._ops.copy_blocks(self._caches, inputs.copies)
        if not inputs.token_ids.size:
            return np.empty((0, self.vocab_size), np.float32)
        into = None if hidden is None else self._ops.array(hidden)
        logits = self._model.forward(StepArrays.of(inputs, self._ops.array), self._caches, into)
        return np.asarray(logits)

    def close(self) -> None:
        """Drop weights and KV memory; the runner cannot be used after."""
        del self._model, self._caches
