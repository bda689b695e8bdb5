"""Every kernel at the shape of its docstring's floor: what to run, and the bytes and operations it cannot avoid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from bench import Bench

from vtk.kernels.copy_blocks.cuda import copy_blocks
from vtk.kernels.embedding.cuda import embedding
from vtk.kernels.kv_cache import LayerCache
from vtk.kernels.mask_upsample_threshold.cuda import mask_upsample_threshold
from vtk.kernels.merge_attention_states.cuda import merge_attention_states
from vtk.kernels.ms_deform_attn.cuda import ms_deform_attn
from vtk.kernels.nms.cuda import nms
from vtk.kernels.paged_attention.cuda import paged_attention
from vtk.kernels.resize_normalize.cuda import resize_normalize
from vtk.kernels.resize_normalize.plan import Placement, plan_resize
from vtk.kernels.resize_normalize.tables import Filter
from vtk.kernels.rms_norm.cuda import rms_norm
from vtk.kernels.rope_and_cache.cuda import rope_and_cache
from vtk.kernels.sample.cuda import sample
from vtk.kernels.silu_and_mul.cuda import silu_and_mul
from vtk.kernels.topk_boxes.cuda import topk_boxes
from vtk.kernels.verify_draft.cuda import verify_draft

HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16  # Llama 3 8B
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Problem:
    """predicted: the share of the floor that the docstring expects, None where it says that a launch is all."""

    name: str
    num_bytes: float
    flops: float
    predicted: float | None
    work: Callable[[], object]


class Maker:
    """The problems of one device; a dry run has other sizes of everything."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._float = bench.pick(torch.bfloat16, torch.float32)  # the stock interpreter computes on bfloat16's bits

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self._bench.device).to(self._float)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(high, shape, dtype=dtype, device=self._bench.device)

    def cache(self, num_blocks: int) -> LayerCache[torch.Tensor]:
        heads, dim = self._bench.pick((KV_HEADS, HEAD_DIM), (1, 16))
        return LayerCache(
            self.randn(num_blocks, heads, dim, BLOCK_SIZE), self.randn(num_blocks, heads, BLOCK_SIZE, dim)
        )

    def rms_norm(self, rows: int, predicted: float) -> Problem:
        rows, width = self._bench.pick((rows, 4096), (2, 64))
        x, residual, out = (self.randn(rows, width) for _ in range(3))
        weight = torch.ones(width, device=x.device)
        moved = 4 * x.nbytes
        return Problem(
            f"rms_norm {rows} x {width}", moved, 5 * x.numel(), predicted,
            lambda: rms_norm(x, weight, 1e-5, residual, out),
        )  # fmt: skip

    def silu_and_mul(self, rows: int, predicted: float) -> Problem:
        rows, width = self._bench.pick((rows, 14_336), (2, 64))
        gate_up, out = self.randn(rows, 2 * width), self.randn(rows, width)
        return Problem(
            f"silu_and_mul {rows} x {width}", gate_up.nbytes + out.nbytes, 5 * out.numel(), predicted,
            lambda: silu_and_mul(gate_up, out),
        )  # fmt: skip

    def embedding(self, rows: int, predicted: float) -> Problem:
        rows, width, vocab_size = self._bench.pick((rows, 4096, 128_256), (2, 64, 9))
        ids, table, out = self.integers(vocab_size, rows), self.randn(vocab_size, width), self.randn(rows, width)
        return Problem(
            f"embedding {rows} x {width}", 2 * out.nbytes, 0, predicted, lambda: embedding(ids, table, out)
        )  # fmt: skip

    def rope_and_cache(self, rows: int, predicted: float) -> Problem:
        rows, heads, kv_heads, dim = self._bench.pick((rows, HEADS, KV_HEADS, HEAD_DIM), (2, 2, 1, 16))
        query, key, value = (self.randn(rows, count, dim) for count in (heads, kv_heads, kv_heads))
        cos, sin = (torch.rand(4096, dim // 2, device=query.device) for _ in range(2))
        cache = self.cache(-(-rows // BLOCK_SIZE))
        slots = torch.arange(rows, device=query.device)
        moved = 2 * query.nbytes + 3 * key.nbytes + 2 * value.nbytes
        return Problem(
            f"rope_and_cache {rows} tokens", moved, 3 * (query.numel() + key.numel()), predicted,
            lambda: rope_and_cache(query, key, value, cos, sin, slots, slots, cache),
        )  # fmt: skip

    def copy_blocks(self) -> Problem:
        layers, pairs = self._bench.pick((32, 8), (1, 1))
        caches = [self.cache(2 * pairs) for _ in range(layers)]
        moved = sum(tensor.nbytes for cache in caches for tensor in cache.tensors)  # half is read, half written
        chosen = [(pair, pairs + pair) for pair in range(pairs)]
        return Problem(
            f"copy_blocks {pairs} pairs, {layers} layers", moved, 0, 0.07, lambda: copy_blocks(caches, chosen)
        )  # fmt: skip

    def sample(self, top_p: float, predicted: float) -> Problem:
        rows, vocab_size = self._bench.pick((32, 128_256), (1, 64))
        logits = self.randn(rows, vocab_size)
        full = [torch.full((rows,), value, device=logits.device) for value in (0.7, top_p, 0.0)]
        top_k = self.integers(1, rows, dtype=torch.int32)
        seeds, steps = self.integers(1 << 40, rows), self.integers(99, rows)
        return Problem(
            f"sample {rows} x {vocab_size}, top_p {top_p}", logits.nbytes, 0, predicted,
            lambda: sample(logits, full[0], top_k, full[1], full[2], seeds, steps),
        )  # fmt: skip

    def verify_draft(self) -> Problem:
        drafts, sampled = self.integers(2, 32, 4), self.integers(2, 32, 5)
        moved = drafts.nbytes + 2 * sampled.nbytes
        return Problem("verify_draft 32 x 4", moved, 0, None, lambda: verify_draft(drafts, sampled))

    def merge_attention_states(self) -> Problem:
        rows, heads, dim = self._bench.pick((4096, HEADS, HEAD_DIM), (2, 2, 16))
        first, second, out = (self.randn(rows, heads, dim) for _ in range(3))
        a, b = (torch.randn(rows, heads, device=out.device) for _ in range(2))
        moved = 3 * out.nbytes + 2 * a.nbytes
        return Problem(
            f"merge_attention_states {rows} rows", moved, 4 * out.numel(), 0.85,
            lambda: merge_attention_states(first, a, second, b, out),
        )  # fmt: skip

    def attention(self, *, decode: bool) -> Problem:
        heads, kv_heads, dim = self._bench.pick((HEADS, KV_HEADS, HEAD_DIM), (2, 1, 16))
        batch, length = self._bench.pick((32 if decode else 1, 4096), (2 if decode else 1, 20))
        new = 1 if decode else length
        width = -(-length // BLOCK_SIZE)
        cache = self.cache(batch * width)
        tables = torch.randperm(batch * width, device=cache.key.device).int().view(batch, width)
        query, out = (self.randn(batch * new, heads, dim) for _ in range(2))
        bounds = torch.arange(batch + 1, device=query.device, dtype=torch.int32) * new
        lengths = torch.full((batch,), length, device=query.device, dtype=torch.int32)
        seen = batch * (length if decode else length * (length + 1) // 2)
        moved = 2 * batch * length * kv_heads * dim * query.itemsize + 2 * query.nbytes
        return Problem(
            f"paged_attention {'decode' if decode else 'prefill'} {batch} x {length}",
            moved, 4 * seen * heads * dim, 0.75 if decode else 0.40,
            lambda: paged_attention(query, cache, bounds, lengths, tables, dim**-0.5, out),
        )  # fmt: skip

    def resize_normalize(self, interpolation: Filter, predicted: float) -> Problem:
        source, size = self._bench.pick(((1080, 1920), (640, 640)), ((5, 7), (4, 4)))
        plan = plan_resize([Placement(0, source, size, (0, 0))], size, interpolation).to(self._bench.device)
        pixels = self.integers(256, source[0] * source[1] * 3, dtype=torch.uint8)
        out = torch.empty(1, 3, *size, dtype=torch.float16, device=pixels.device)
        return Problem(
            f"resize_normalize {interpolation} to {size[1]} x {size[0]}", pixels.nbytes + out.nbytes, 0, predicted,
            lambda: resize_normalize(pixels, plan, out, MEAN, STD),
        )  # fmt: skip

    def nms(self) -> Problem:
        batch, boxes = self._bench.pick((8, 1000), (1, 8))
        corner = torch.rand(batch, boxes, 2, device=self._bench.device) * 600
        xyxy, scores = torch.cat([corner, corner + 40], 2), torch.rand(batch, boxes, device=corner.device)
        classes = self.integers(3, batch, boxes)
        moved = xyxy.nbytes + scores.nbytes + classes.nbytes
        return Problem(f"nms {batch} x {boxes}", moved, 0, 0.01, lambda: nms(xyxy, scores, classes, 0.5, 100))

    def topk_boxes(self) -> Problem:
        queries, classes, wanted = self._bench.pick((300, 80, 300), (8, 3, 4))
        logits, boxes = self.randn(1, queries, classes), torch.rand(1, queries, 4, device=self._bench.device)
        geometry = torch.tensor([[[640.0, 640], [0, 0], [0.5, 0.5]]], dtype=torch.float64, device=boxes.device)
        return Problem(
            f"topk_boxes {queries} x {classes}", logits.nbytes + boxes.nbytes, 0, 0.01,
            lambda: topk_boxes(logits, boxes, geometry, wanted),
        )  # fmt: skip

    def mask_upsample_threshold(self) -> Problem:
        masks, cells, size = self._bench.pick((100, 160, (1080, 1920)), (1, 4, (9, 8)))
        values = self.randn(masks, cells, cells)
        axes = torch.tensor([[1.0, 0.0, cells / side] for side in size[::-1]], dtype=torch.float64).to(values.device)
        packed = masks * size[1] * -(-size[0] // 8)
        return Problem(
            f"mask_upsample_threshold {masks} masks", values.nbytes + packed, 0, 0.05,
            lambda: mask_upsample_threshold(values, size, axes, 0.0),
        )  # fmt: skip

    def ms_deform_attn(self, batch: int, predicted: float) -> Problem:
        levels, points, queries, heads, dim = self._bench.pick(
            (((80, 80), (40, 40), (20, 20)), (3, 6, 3), 300, 8, 32), (((2, 3), (1, 2)), (1, 2), 3, 1, 16)
        )
        positions = sum(height * width for height, width in levels)
        value = self.randn(batch, positions, heads, dim)
        locations = torch.rand(batch, heads, queries, sum(points), 2, device=value.device).to(value.dtype)
        weights = self.randn(batch, heads, queries, sum(points)).softmax(-1)
        moved = value.nbytes + locations.nbytes + weights.nbytes + batch * queries * heads * dim * value.itemsize
        return Problem(
            f"ms_deform_attn of {batch}", moved, 0, predicted,
            lambda: ms_deform_attn(value, levels, points, locations, weights),
        )  # fmt: skip


def all_problems(bench: Bench) -> Iterator[tuple[str, Callable[[], Problem]]]:
    """Name of the operation, and what makes its problem: one at a time, since some are large."""
    make = Maker(bench)
    yield "paged_attention", lambda: make.attention(decode=True)
    yield "paged_attention", lambda: make.attention(decode=False)
    yield "merge_attention_states", make.merge_attention_states
    yield "rms_norm", lambda: make.rms_norm(32, 0.15)
    yield "rms_norm", lambda: make.rms_norm(4096, 0.85)
    yield "rope_and_cache", lambda: make.rope_and_cache(32, 0.12)
    yield "rope_and_cache", lambda: make.rope_and_cache(2048, 0.60)
    yield "silu_and_mul", lambda: make.silu_and_mul(32, 0.30)
    yield "silu_and_mul", lambda: make.silu_and_mul(1024, 0.90)
    yield "embedding", lambda: make.embedding(32, 0.08)
    yield "embedding", lambda: make.embedding(4096, 0.80)
    yield "copy_blocks", make.copy_blocks
    yield "sample", lambda: make.sample(1.0, 0.10)
    yield "sample", lambda: make.sample(0.9, 0.01)
    yield "verify_draft", make.verify_draft
    yield "resize_normalize", lambda: make.resize_normalize("pil_bilinear", 0.15)
    yield "resize_normalize", lambda: make.resize_normalize("pil_bicubic", 0.05)
    yield "nms", make.nms
    yield "topk_boxes", make.topk_boxes
    yield "mask_upsample_threshold", make.mask_upsample_threshold
    yield "ms_deform_attn", lambda: make.ms_deform_attn(1, 0.20)
    yield "ms_deform_attn", lambda: make.ms_deform_attn(8, 0.60)
