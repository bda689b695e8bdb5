"""The arrays that a runner gets, against a by-hand account of the same step."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vtk.llm_serving.core.step_inputs import build_inputs


def test_a_mixed_step_is_flattened_in_order(world: Callable[..., Any]) -> None:
    w = world(num_blocks=32, max_num_batched_tokens=12)
    first = w.add([1, 2, 3, 4, 5], max_tokens=9)
    w.step()
    second = w.add(list(range(10, 30)), max_tokens=2)
    batch = w.scheduler.schedule()
    inputs = build_inputs(batch, 4)
    assert inputs.token_ids.tolist() == [first.output[0], *range(10, 21)]
    assert inputs.positions.tolist() == [5, *range(11)]
    assert inputs.attention.cu_seqlens.tolist() == [0, 1, 12]
    assert inputs.attention.seq_lens.tolist() == [6, 11]
    assert inputs.logits_rows.tolist() == [0]  # the prompt is not finished: nothing to sample
    tables = inputs.attention.block_tables
    assert tables.tolist() == [[*first.block_table, -1], second.block_table]
    expected = [tables[0, 1] * 4 + 1] + [tables[1, p // 4] * 4 + p % 4 for p in range(11)]
    assert inputs.attention.slot_mapping.tolist() == expected


def test_all_rows_of_a_request_can_be_asked_for(world: Callable[..., Any]) -> None:
    w = world(num_blocks=32)
    w.add([7, 8], max_tokens=2)
    second = w.add([1, 2, 3], max_tokens=2)
    inputs = build_inputs(w.scheduler.schedule(), 4, all_logits={second})
    assert inputs.logits_rows.tolist() == [1, 2, 3, 4]


def test_an_empty_step_has_empty_arrays(world: Callable[..., Any]) -> None:
    inputs = build_inputs(world().scheduler.schedule(), 4)
    assert inputs.token_ids.shape == inputs.logits_rows.shape == (0,)
    assert inputs.attention.cu_seqlens.tolist() == [0]
    assert inputs.token_ids.dtype == np.int64
