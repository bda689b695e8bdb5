"""The arrays of a step as a model takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import numpy.typing as npt

from vtk.kernels.arrays import A
from vtk.llm_serving.core.step_inputs import StepInputs


@dataclass(frozen=True, eq=False)
class StepArrays(Generic[A]):
    """Shapes and meanings are those of StepInputs and AttentionMetadata."""

    token_ids: A
    positions: A
    slot_mapping: A
    logits_rows: A
    cu_seqlens: A
    seq_lens: A
    block_tables: A

    @classmethod
    def of(cls, inputs: StepInputs, array: Callable[[npt.NDArray[Any]], A]) -> StepArrays[A]:
        """`array` makes an operand of each, such as `Ops.array`."""
        attention = inputs.attention
        return cls(
            array(inputs.token_ids), array(inputs.positions), array(attention.slot_mapping), array(inputs.logits_rows),
            array(attention.cu_seqlens), array(attention.seq_lens), array(attention.block_tables),
        )  # fmt: skip
