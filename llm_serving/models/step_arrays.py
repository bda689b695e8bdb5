"""The arrays of a step as a model takes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from vtk.kernels.arrays import A
from vtk.llm_serving.core.step_inputs import StepInputs


@dataclass(frozen=True, eq=False)
class StepArrays(Generic[A]):
    """Shapes and meanings are those of StepInputs and AttentionMetadata.

    logits_cu_seqlens: as cu_seqlens, of `logits_rows` alone, where these are the last rows of each sequence; else None.
    """

    token_ids: A
    positions: A
    slot_mapping: A
    logits_rows: A
    cu_seqlens: A
    seq_lens: A
    block_tables: A
    logits_cu_seqlens: A | None = None

    @classmethod
    def of(cls, inputs: StepInputs, array: Callable[[npt.NDArray[Any]], A]) -> StepArrays[A]:
        """`array` makes an operand of each, such as `Ops.array`."""
        attention = inputs.attention
        ends = _ends_if_last(inputs.logits_rows, attention.cu_seqlens)
        return cls(
            array(inputs.token_ids), array(inputs.positions), array(attention.slot_mapping), array(inputs.logits_rows),
            array(attention.cu_seqlens), array(attention.seq_lens), array(attention.block_tables),
            None if ends is None else array(ends),
        )  # fmt: skip


def _ends_if_last(rows: npt.NDArray[np.int64], cu_seqlens: npt.NDArray[np.int32]) -> npt.NDArray[np.int32] | None:
    """How many of the ascending `rows` lie before each end of a sequence; None if one has a row after such a row."""
    ends = np.searchsorted(rows, cu_seqlens)
    counts = np.diff(ends)
    last = np.repeat(cu_seqlens[1:] - ends[1:], counts) + np.arange(len(rows))
    return ends.astype(np.int32) if np.array_equal(rows, last) else None
