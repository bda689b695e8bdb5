"""A decoder over paged KV on the CPU, with whichever operations were chosen when it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np
import torch

from vtk.errors import UsageError
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.ops import Ops, W
from vtk.llm_serving.core.step_inputs import StepInputs
from vtk.llm_serving.models.config import ModelConfig
from vtk.llm_serving.models.decoder import Decoder
from vtk.llm_serving.models.step_tensors import StepTensors
from vtk.llm_serving.runner.base import HiddenStates, Logits


def block_bytes(config: ModelConfig, block_size: int, kv_dtype: torch.dtype) -> int:
    """Bytes of one block in all layers, int8 with its scales."""
    values = 2 * config.num_kv_heads * block_size
    scales = values * torch.float32.itemsize if kv_dtype == torch.int8 else 0
    return config.num_layers * (values * config.head_dim * kv_dtype.itemsize + scales)


def num_blocks_within(
    budget: int, config: ModelConfig, block_size: int, kv_dtype: torch.dtype, hint: str = "Raise cpu_kvcache_space."
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
    kv_dtype: torch.dtype


class DecoderRunner(Generic[W]):
    """ModelRunner over one model and one set of operations."""

    device = "cpu"

    def __init__(self, model: Decoder[W], ops: Ops[W], backend: str, sizes: RunnerSizes) -> None:
        config = model.config
        self.backend = backend
        self.vocab_size = config.vocab_size
        self.hidden_size = config.hidden_size
        self.num_blocks = sizes.num_blocks
        self.block_size = sizes.block_size
        self._model = model
        self._ops = ops
        self._caches = [
            LayerCache.allocate(
                sizes.num_blocks, config.num_kv_heads, sizes.block_size, config.head_dim, sizes.kv_dtype
            )
            for _ in range(config.num_layers)
        ]

    @torch.inference_mode()
    def forward(self, inputs: StepInputs, hidden: HiddenStates | None = None) -> Logits:
        """See ModelRunner.forward."""
        self._ops.copy_blocks(self._caches, inputs.copies)
        if not inputs.token_ids.size:
            return np.empty((0, self.vocab_size), np.float32)
        into = None if hidden is None else torch.from_numpy(hidden)
        logits: Logits = self._model.forward(StepTensors.of(inputs), self._caches, into).numpy()
        return logits

    def close(self) -> None:
        """Drop weights and KV memory; the runner cannot be used after."""
        del self._model, self._caches
