"""Attention of others on the shapes of `kernels.py`, in the same run: PyTorch, flash-attn, flashinfer where installed.

Each peer has the layout that it prefers: dense keys and values for PyTorch and flash-attn, pages of 16 for flashinfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import torch
from bench import Bench, Row, attempt, run_part
from problems import BLOCK_SIZE, HEAD_DIM, HEADS, KV_HEADS, Maker
from torch.nn.functional import scaled_dot_product_attention

WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class Inputs:
    """query: (B, H, new, D). key, value: (B, KVH, length, D). All tokens of each sequence, or its last one, are new."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decode: bool

    @property
    def phase(self) -> str:
        batch, _, length, _ = self.key.shape
        return f"{'decode' if self.decode else 'prefill'} {batch} x {length}"


def make_inputs(bench: Bench, *, decode: bool) -> Inputs:
    heads, kv_heads, dim = bench.pick((HEADS, KV_HEADS, HEAD_DIM), (2, 1, 16))
    batch, length = bench.pick((32 if decode else 1, 4096), (2 if decode else 1, 20))
    make = Maker(bench)
    key, value = (make.randn(batch, kv_heads, length, dim) for _ in range(2))
    return Inputs(make.randn(batch, heads, 1 if decode else length, dim), key, value, decode)


def sdpa(inputs: Inputs) -> Callable[[], object]:
    """PyTorch's, whichever of its kernels it chooses."""
    query, key, value = inputs.query, inputs.key, inputs.value
    return lambda: scaled_dot_product_attention(query, key, value, is_causal=not inputs.decode, enable_gqa=True)


def _is_seen(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= key


def flex_attention(inputs: Inputs) -> Callable[[], object]:
    """PyTorch's compiled one, with a mask of blocks in prefill."""
    flex = import_module("torch.nn.attention.flex_attention")
    compiled: Callable[..., object] = torch.compile(flex.flex_attention, dynamic=False)
    mask, length = None, inputs.key.shape[2]
    if not inputs.decode:
        mask = flex.create_block_mask(_is_seen, None, None, length, length, device=inputs.key.device)
    return lambda: compiled(inputs.query, inputs.key, inputs.value, block_mask=mask, enable_gqa=True)


def flash_attn(inputs: Inputs) -> Callable[[], object]:
    module = import_module("flash_attn")
    query, key, value = (part.transpose(1, 2).contiguous() for part in (inputs.query, inputs.key, inputs.value))
    if not inputs.decode:
        return lambda: module.flash_attn_func(query, key, value, causal=True)
    lengths = torch.full((len(key),), key.shape[1], dtype=torch.int32, device=key.device)
    return lambda: module.flash_attn_with_kvcache(query, key, value, cache_seqlens=lengths, causal=True)


def flashinfer(inputs: Inputs) -> Callable[[], object]:
    module = import_module("flashinfer")
    batch, kv_heads, length, dim = inputs.key.shape
    query = inputs.query.transpose(1, 2).flatten(0, 1).contiguous()
    if not inputs.decode:
        key, value = (part[0].transpose(0, 1).contiguous() for part in (inputs.key, inputs.value))
        return lambda: module.single_prefill_with_kv_cache(query, key, value, causal=True)
    pages = torch.stack([inputs.key, inputs.value], 2).view(batch, kv_heads, 2, -1, BLOCK_SIZE, dim)
    pages = pages.permute(0, 3, 2, 4, 1, 5).flatten(0, 1).contiguous()  # (pages, 2, page size, KV heads, D)
    count = length // BLOCK_SIZE
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=query.device)
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    bounds = torch.arange(batch + 1, dtype=torch.int32, device=query.device) * count
    ids = torch.arange(batch * count, dtype=torch.int32, device=query.device)
    last = torch.full((batch,), BLOCK_SIZE, dtype=torch.int32, device=query.device)
    wrapper.plan(
        bounds, ids, last, inputs.query.shape[1], kv_heads, dim, BLOCK_SIZE,
        q_data_type=query.dtype, kv_data_type=query.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(query, pages)


PEERS = {
    "torch SDPA": ("torch", sdpa),
    "flash-attn": ("flash_attn", flash_attn),
    "flashinfer": ("flashinfer", flashinfer),
    "torch FlexAttention": ("torch", flex_attention),  # last, since it compiles for long
}


def measured(bench: Bench, name: str, make: Callable[[Inputs], Callable[[], object]], *, decode: bool) -> Row:
    inputs = make_inputs(bench, decode=decode)
    seconds = bench.clock.seconds(make(inputs))
    return Row(f"{name}, {inputs.phase}", seconds * 1e6, "us")


def measure(bench: Bench) -> Iterator[Row]:
    for name, (package, make) in PEERS.items():
        if find_spec(package) is None:
            yield Row(name, note="not installed")
        elif bench.dry and make is flex_attention:
            yield Row(name, note="compiles for long: not part of a dry run")
        else:
            for decode in (True, False):
                yield from attempt(name, partial(measured, bench, name, make, decode=decode))


if __name__ == "__main__":
    run_part(measure)
