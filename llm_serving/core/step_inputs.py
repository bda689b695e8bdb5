"""What a step means to a runner: flat arrays over the new tokens of all its requests."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtk.llm_serving.core.batch import Batch
from vtk.llm_serving.core.request import Request

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """Where the T new tokens of B sequences stand in the paged KV cache.

    cu_seqlens: (B + 1,) int32, sequence i owns the rows `cu_seqlens[i]:cu_seqlens[i + 1]`. seq_lens: (B,) int32, tokens
    of each sequence after the step; its new rows are the last ones, and row r at position p sees positions 0..p.
    block_tables: (B, longest) int32, padded with -1. slot_mapping: (T,) int64, each row's
    `block * block_size + offset`.
    """

    cu_seqlens: Int32Array
    seq_lens: Int32Array
    block_tables: Int32Array
    slot_mapping: Int64Array


@dataclass(frozen=True, eq=False)
class StepInputs:
    """token_ids, positions: (T,) int64. logits_rows: (S,) int64, the rows whose logits are wanted, ascending.

    copies: blocks (source, target) to copy before anything is stored.
    """

    token_ids: Int64Array
    positions: Int64Array
    attention: AttentionMetadata
    logits_rows: Int64Array
    copies: tuple[tuple[int, int], ...]


def build_inputs(batch: Batch, block_size: int, all_logits: Collection[Request] = ()) -> StepInputs:
    """Flatten a batch in its order. Logits are wanted for the rows that sample and all rows of `all_logits`."""
    counts = list(batch.num_new.values())
    cu_seqlens = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    total = int(cu_seqlens[-1])
    longest = max((len(request.block_table) for request in batch.num_new), default=0)
    token_ids = np.empty(total, np.int64)
    positions = np.empty(total, np.int64)
    slots = np.empty(total, np.int64)
    tables = np.full((len(counts), longest), -1, np.int32)
    seq_lens = np.empty(len(counts), np.int32)
    wanted = np.zeros(total, np.bool_)
    for i, (request, count) in enumerate(batch.num_new.items()):
        rows = slice(cu_seqlens[i], cu_seqlens[i + 1])
        start, stop = request.num_computed, request.num_computed + count
        token_ids[rows] = request.tokens(start, stop)
        positions[rows] = np.arange(start, stop)
        tables[i, : len(request.block_table)] = request.block_table
        slots[rows] = tables[i, positions[rows] // block_size] * block_size + positions[rows] % block_size
        seq_lens[i] = stop
        wanted[rows] = request in all_logits
        wanted[rows.stop - 1] |= stop == request.num_tokens
    attention = AttentionMetadata(cu_seqlens, seq_lens, tables, slots)
    return StepInputs(token_ids, positions, attention, np.flatnonzero(wanted), batch.copies)
