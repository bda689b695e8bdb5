"""The arrays of a step as tensors that lie side by side, to cross to a device in one copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from vtk.llm_serving.core.step_inputs import StepInputs
from vtk.llm_serving.models.step_arrays import StepArrays

ALIGNMENT = 64  # Triton compiles a kernel again for a pointer that is no multiple of 16


StepTensors: TypeAlias = StepArrays[torch.Tensor]


@dataclass(frozen=True)
class StepLayout:
    """Where the arrays of a step of `tokens` rows lie in one piece of memory.

    sequences: rows of the tables, of `width` blocks each. logits_rows: rows whose logits are wanted.
    """

    tokens: int
    sequences: int
    width: int
    logits_rows: int

    def _shapes(self) -> list[tuple[torch.dtype, tuple[int, ...]]]:
        long, short = torch.int64, torch.int32
        return [
            (long, (self.tokens,)), (long, (self.tokens,)), (long, (self.tokens,)), (long, (self.logits_rows,)),
            (short, (self.sequences + 1,)), (short, (self.sequences,)), (short, (self.sequences, self.width)),
        ]  # fmt: skip

    @property
    def num_bytes(self) -> int:
        return sum(_aligned(dtype, shape) for dtype, shape in self._shapes())

    def views(self, memory: torch.Tensor) -> StepTensors:
        """The arrays in `memory`, (num_bytes or more,) uint8."""
        start, views = 0, []
        for dtype, shape in self._shapes():
            stop = start + torch.Size(shape).numel() * dtype.itemsize
            views.append(memory[start:stop].view(dtype).view(shape))
            start += _aligned(dtype, shape)
        return StepTensors(*views)


def write_step(step: StepTensors, inputs: StepInputs, logits_rows: npt.NDArray[np.int64]) -> None:
    """Fill host tensors that may have more rows than the inputs, which then have one row a sequence.

    A padding row is a sequence of one token, 0, in block 0: it reads what lies there and, at slot -1, stores nothing.
    """
    attention = inputs.attention
    _put(step.token_ids, inputs.token_ids, 0)
    _put(step.positions, inputs.positions, 0)
    _put(step.slot_mapping, attention.slot_mapping, -1)
    _put(step.logits_rows, logits_rows, 0)
    _put(step.seq_lens, attention.seq_lens, 1)
    total, sequences = len(inputs.token_ids), len(attention.seq_lens)
    _put(step.cu_seqlens, attention.cu_seqlens, 0)
    step.cu_seqlens[sequences + 1 :].copy_(torch.arange(total, len(step.token_ids)) + 1)
    step.block_tables.zero_()
    tables = torch.from_numpy(attention.block_tables)
    step.block_tables[:sequences, : tables.shape[1]].copy_(tables)


def _put(target: torch.Tensor, values: npt.NDArray[np.int32] | npt.NDArray[np.int64], padding: int) -> None:
    target[: len(values)].copy_(torch.from_numpy(values))
    target[len(values) :].fill_(padding)


def _aligned(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return -(-torch.Size(shape).numel() * dtype.itemsize // ALIGNMENT) * ALIGNMENT
