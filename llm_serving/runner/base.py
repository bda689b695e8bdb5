"""What the engine asks of a device."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from vtk.llm_serving.core.step_inputs import StepInputs

Logits = npt.NDArray[np.float32]
HiddenStates = npt.NDArray[np.float32]


class ModelRunner(Protocol):
    """A model with its weights and its paged KV cache on one device. One owner; not reentrant."""

    backend: str
    device: str
    vocab_size: int
    hidden_size: int
    num_blocks: int
    block_size: int

    def forward(self, inputs: StepInputs, hidden: HiddenStates | None = None) -> Logits:
        """Copy blocks, store the KV of all new tokens, attend; returns (len(logits_rows), vocab_size) float32.

        The logits are the caller's until the next call, which may overwrite them.

        hidden: (T, hidden_size) float32 to be filled with the last hidden states, after the final norm, of all rows.
        Within a layer every key and value of the step is stored before any row attends: a sequence may read blocks
        that another one fills in the same step.
        """
        ...

    def close(self) -> None:
        """Free weights and KV memory."""
        ...
