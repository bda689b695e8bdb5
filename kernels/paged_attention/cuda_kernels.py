"""The kernels of paged attention: a tile of queries over cached positions, and the merge of what its splits found."""

from __future__ import annotations

import triton
import triton.language as tl


# What changes from step to step is not specialized: a new batch size or table width must not start the compiler.
@triton.jit(do_not_specialize=["batch", "table_row", "lse_row", "lse_head"])
def attend(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    cu_seqlens: tl.tensor,
    seq_lens: tl.tensor,
    block_tables: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    scale: tl.tensor,
    batch: tl.tensor,
    query_row: tl.tensor,
    query_head: tl.tensor,
    key_block: tl.tensor,
    key_head: tl.tensor,
    key_dim: tl.tensor,
    value_block: tl.tensor,
    value_head: tl.tensor,
    value_slot: tl.tensor,
    scale_block: tl.tensor,
    scale_head: tl.tensor,
    table_row: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    out_split: tl.tensor,
    lse_row: tl.tensor,
    lse_head: tl.tensor,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT_LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    POSITIONS: tl.constexpr,
    RUN: tl.constexpr,
    SEARCH: tl.constexpr,
) -> None:
    """One tile of queries of one sequence, all query heads of one KV head, over one split of the positions.

    A row of the tile is a pair of token and head, so that the heads of a group share each key that is read. Sequence i
    owns the tiles from `cu_seqlens[i] // TOKENS + i` on: enough for its tokens, and found without knowing the longest.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)

    sequence = tl.full([], -1, tl.int32)
    for searched in range(0, batch, SEARCH):
        candidate = searched + tl.arange(0, SEARCH)
        start = tl.load(cu_seqlens + candidate, mask=candidate < batch, other=0)
        begins_before = (candidate < batch) & (start // TOKENS + candidate <= tile)
        sequence += tl.sum(begins_before.to(tl.int32), 0)
    first_row = tl.load(cu_seqlens + sequence)
    count = tl.load(cu_seqlens + sequence + 1) - first_row
    first_token = (tile - first_row // TOKENS - sequence) * TOKENS
    if first_token >= count:
        return

    length = tl.load(seq_lens + sequence)
    row = tl.arange(0, ROWS)
    token = first_token + row // GROUP
    head = kv_head * GROUP + row % GROUP
    exists = (row // GROUP < TOKENS) & (token < count)
    position = length - count + token
    dim = tl.arange(0, DIM_PADDED)
    query_at = (first_row + token).to(tl.int64)[:, None] * query_row + head[:, None] * query_head + dim[None, :]
    q = tl.load(query + query_at, mask=exists[:, None] & (dim < DIM)[None, :], other=0.0)

    begin = 0
    end = length
    if CAUSAL:
        end = tl.minimum(end, length - count + tl.minimum(first_token + TOKENS, count))
    if WINDOW:
        begin = tl.maximum(length - count + first_token - WINDOW + 1, 0)
    if SPLIT_LENGTH:
        begin = tl.maximum(begin, split * SPLIT_LENGTH)
        end = tl.minimum(end, split * SPLIT_LENGTH + SPLIT_LENGTH)

    highest = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DIM_PADDED], tl.float32)
    table = block_tables + sequence.to(tl.int64) * table_row
    for tile_start in range(begin // POSITIONS * POSITIONS, end, POSITIONS):
        at = tl.multiple_of(tile_start, POSITIONS) + tl.arange(0, POSITIONS)
        inside = (at >= begin) & (at < end)
        # Keys come by whole blocks, block 0 past the ends, since a mask per position would split the copies; what no
        # one stored is hidden below.
        in_block = (at // BLOCK_SIZE * BLOCK_SIZE + BLOCK_SIZE > begin) & (at // BLOCK_SIZE * BLOCK_SIZE < end)
        # The compiler cannot know that neighbors share a block; only when told so it copies 8-bit keys asynchronously.
        block = tl.max_constancy(tl.load(table + at // BLOCK_SIZE, mask=in_block, other=0).to(tl.int64), [RUN])
        slot = at % BLOCK_SIZE
        key_at = kv_head * key_head + (block * key_block + slot)[None, :] + (dim * key_dim)[:, None]
        k = tl.load(key + key_at, mask=(dim < DIM)[:, None], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision="tf32x3") * (scale * 1.4426950408889634)
        scales_at = block * scale_block + kv_head * scale_head + slot
        if key_scales is not None:
            scores = scores * tl.load(key_scales + scales_at, mask=inside, other=0.0)[None, :]
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (at[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (at[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, -float("inf"))

        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shift = tl.where(new_highest == -float("inf"), 0.0, new_highest)
        weights = tl.exp2(scores - shift[:, None])
        decay = tl.exp2(highest - shift)
        total = total * decay + tl.sum(weights, 1)
        if value_scales is not None:
            weights = weights * tl.load(value_scales + scales_at, mask=inside, other=0.0)[None, :]
        value_at = kv_head * value_head + (block * value_block + slot * value_slot)[:, None] + dim[None, :]
        v = tl.load(value + value_at, mask=inside[:, None] & (dim < DIM)[None, :], other=0.0)
        joined = tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="tf32x3")
        result = result * decay[:, None] + joined
        highest = new_highest

    result = result / tl.where(total == 0.0, 1.0, total)[:, None]
    written = (first_row + token).to(tl.int64)
    out_at = written[:, None] * out_row + head[:, None] * out_head + split * out_split + dim[None, :]
    stored = exists[:, None] & (dim < DIM)[None, :]
    if SPLIT_LENGTH:
        stored = stored & (begin < end)
    tl.store(out + out_at, result.to(out.dtype.element_ty), mask=stored)
    if lse is not None:
        row_lse = (highest + tl.log2(total)) * 0.6931471805599453
        tl.store(lse + written * lse_row + head * lse_head + split, row_lse, mask=exists)


@triton.jit(do_not_specialize=["num_splits", "lse_row", "lse_head"])
def merge_splits(
    partial: tl.tensor,
    partial_lse: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    num_splits: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    lse_row: tl.tensor,
    lse_head: tl.tensor,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """One head of one row: its splits by chunks in ascending order, those without a position at no weight."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = (row * HEADS + head) * num_splits
    dim = tl.arange(0, DIM_PADDED)

    highest = tl.full([], -float("inf"), tl.float32)
    for start in range(0, num_splits, CHUNK):
        split = start + tl.arange(0, CHUNK)
        part = tl.load(partial_lse + first + split, mask=split < num_splits, other=-float("inf"))
        highest = tl.maximum(highest, tl.max(part, 0))
    shift = tl.where(highest == -float("inf"), 0.0, highest)

    total = tl.full([], 0.0, tl.float32)
    result = tl.zeros([DIM_PADDED], tl.float32)
    for start in range(0, num_splits, CHUNK):
        split = start + tl.arange(0, CHUNK)
        part = tl.load(partial_lse + first + split, mask=split < num_splits, other=-float("inf"))
        weight = tl.exp(part - shift)
        live = (part > -float("inf"))[:, None] & (dim < DIM)[None, :]
        states = tl.load(partial + (first + split)[:, None] * DIM + dim[None, :], mask=live, other=0.0)
        total += tl.sum(weight, 0)
        result += tl.sum(states * weight[:, None], 0)

    result = result / tl.where(total == 0.0, 1.0, total)
    tl.store(out + row * out_row + head * out_head + dim, result.to(out.dtype.element_ty), mask=dim < DIM)
    if lse is not None:
        tl.store(lse + row * lse_row + head * lse_head, highest + tl.log(total))
