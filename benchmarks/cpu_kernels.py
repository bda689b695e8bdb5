"""The compiled CPU kernels against torch in one run, and both against what the machine can do.

    python benchmarks/cpu_kernels.py [--isa avx512 avx2 portable] [--rows 1 8 32 512] [--json]

One thread; times are CPU time of that thread, the least of several interleaved rounds, so that a busy machine
disturbs them little (its caches and clock still do: the load is printed). Shapes are those of SmolLM2-135M.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F

from vtk.kernels import cpu_library, cpu_ops
from vtk.kernels.cpu_checks import Floats
from vtk.kernels.host_memory import aligned_empty
from vtk.kernels.kv_cache import CPU_KV_DTYPES, KvDtype
from vtk.kernels.quant_formats import BLOCK_FORMATS
from vtk.kernels.weights import FLOAT_FORMATS, StoredWeight

ROUNDS = 7
OUTPUTS, DEPTH = 3072, 768  # gate and up; 576 is no multiple of the k-quants' 256
FORMATS = ("f32", "f16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k")
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 9, 3, 64, 16
RANDOM = np.random.default_rng(1)
Record = dict[str, object]


def fastest(tasks: dict[str, Callable[[], object]], seconds: float = 0.02) -> dict[str, float]:
    """CPU seconds per call of each task, rounds interleaved."""
    repeats = {}
    for name, task in tasks.items():
        task()
        start = time.thread_time()
        task()
        repeats[name] = max(1, int(seconds / max(time.thread_time() - start, 1e-6)))
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            start = time.thread_time()
            for _ in range(repeats[name]):
                task()
            best[name] = min(best[name], (time.thread_time() - start) / repeats[name])
    return best


def machine() -> Record:
    """Bytes a second read from memory by a sum, and the best rate of torch's float32 product."""
    far, a, b = torch.ones(1 << 26), torch.randn(768, 768), torch.randn(768, 768)
    times = fastest({"read": lambda: far.sum(), "multiply": lambda: a @ b})
    return {
        "memory_gb_s": far.nbytes / times["read"] / 1e9,
        "sgemm_gflop_s": 2 * 768**3 / times["multiply"] / 1e9,
        "load": os.getloadavg()[0],
    }


def normal(*shape: int) -> Floats:
    """At an address that vectors like, as a model's activations are."""
    array = aligned_empty(shape, np.float32)
    array[...] = RANDOM.standard_normal(shape, np.float32)
    return array


def random_weight(name: str) -> StoredWeight:
    if name not in BLOCK_FORMATS:
        return StoredWeight(name, normal(OUTPUTS, DEPTH).astype(FLOAT_FORMATS[name]))
    block = BLOCK_FORMATS[name]
    # Bytes below 0x3c keep every half-precision scale small and finite.
    data = RANDOM.integers(0, 0x3C, (OUTPUTS, DEPTH // block.block_values * block.block_bytes), np.uint8)
    return StoredWeight(name, data)


def linear_case(name: str, count: int) -> list[Record]:
    weight = random_weight(name)
    packed, dense = cpu_ops.pack(weight), torch.from_numpy(weight.dequantize())
    x, out = normal(count, DEPTH), normal(count, OUTPUTS)
    rows = torch.from_numpy(np.asarray(x))
    times = fastest(
        {
            "exact": lambda: cpu_ops.linear(x, packed, None, "exact", out),
            "quantized": lambda: cpu_ops.linear(x, packed, None, "quantized", out),
            "torch": lambda: F.linear(rows, dense),
        }
    )
    return [
        {
            "op": f"linear {name} {mode}",
            "rows": count,
            "us": times[mode] * 1e6,
            "gflop_s": 2 * count * OUTPUTS * DEPTH / times[mode] / 1e9,
            "gb_s": packed.num_bytes / times[mode] / 1e9,
            "times_torch_f32": times["torch"] / times[mode],
        }
        for mode in (("exact", "quantized") if name in BLOCK_FORMATS else ("exact",))
    ]


def attention_case(batch: int, new: int, context: int, dtype: KvDtype) -> Record:
    count = context // BLOCK
    cache = cpu_ops.allocate_cache(batch * count, KV_HEADS, BLOCK, HEAD_DIM, dtype)
    for tensor in cache.tensors:
        values = RANDOM.random(tensor.shape) * 100 if dtype == "int8" else RANDOM.standard_normal(tensor.shape)
        tensor[...] = values.astype(tensor.dtype)
    query, out = (normal(batch * new, HEADS, HEAD_DIM) for _ in range(2))
    tables = RANDOM.permutation(batch * count).astype(np.int32).reshape(batch, count)
    cu_seqlens = np.arange(0, batch * new + 1, new, dtype=np.int32)
    seq_lens = np.full(batch, context, np.int32)
    key, value = torch.randn(2, batch, KV_HEADS, context, HEAD_DIM).unbind()
    dense = torch.from_numpy(np.asarray(query)).view(batch, new, HEADS, HEAD_DIM).transpose(1, 2)
    mask = None if new == 1 else torch.ones(new, context, dtype=torch.bool).tril(context - new)
    times = fastest(
        {
            "ours": lambda: cpu_ops.paged_attention(query, cache, cu_seqlens, seq_lens, tables, 0.125, out),
            "torch": lambda: F.scaled_dot_product_attention(dense, key, value, attn_mask=mask, enable_gqa=True),
        }
    )
    seen = sum(context - new + i + 1 for i in range(new))
    return {
        "op": f"attention {dtype} context {context} x {batch}",
        "rows": batch * new,
        "us": times["ours"] * 1e6,
        "gflop_s": 4 * batch * HEADS * HEAD_DIM * seen / times["ours"] / 1e9,
        "gb_s": sum(tensor.nbytes for tensor in cache.tensors) / times["ours"] / 1e9,
        "times_torch_f32": times["torch"] / times["ours"],
    }


def row_records() -> list[Record]:
    x, residual, weight, gate_up = normal(32, 576), normal(32, 576), normal(576), normal(32, 3072)
    normed, gated = normal(32, 576), normal(32, 1536)
    own = [torch.from_numpy(np.array(array)) for array in (x, residual, weight)]
    gate, up = torch.from_numpy(np.asarray(gate_up)).chunk(2, dim=-1)
    times = fastest(
        {
            "rms_norm": lambda: cpu_ops.rms_norm(x, weight, 1e-5, residual, normed),
            "rms_norm torch": lambda: F.rms_norm(own[1].add_(own[0]), (576,), own[2], 1e-5),
            "silu_and_mul": lambda: cpu_ops.silu_and_mul(gate_up, gated),
            "silu_and_mul torch": lambda: F.silu(gate) * up,
        }
    )
    sizes = {"rms_norm": 5 * x.nbytes, "silu_and_mul": gate_up.nbytes + gated.nbytes}
    return [
        {
            "op": op,
            "rows": 32,
            "us": times[op] * 1e6,
            "gb_s": size / times[op] / 1e9,
            "times_torch_f32": times[f"{op} torch"] / times[op],
        }
        for op, size in sizes.items()
    ]


def measure(rows: list[int]) -> list[Record]:
    cases = [(1, 1, 256), (8, 1, 256), (32, 1, 256), (1, 512, 512), (1, 64, 2048)]
    attention = [attention_case(*case, dtype) for case in cases for dtype in CPU_KV_DTYPES]
    linear = [record for name in FORMATS for count in rows for record in linear_case(name, count)]
    return [*linear, *attention, *row_records()]


def show(record: Record) -> str:
    numbers = "".join(f"{record.get(key, 0):>10.1f}" for key in ("us", "gflop_s", "gb_s"))
    return f"{record['op']!s:<42}{record['rows']:>6}{numbers}{record['times_torch_f32']:>10.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--isa", nargs="+", choices=cpu_library.ISAS, help="default: the one in use")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 512])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.isa:  # one process each: a library is chosen once
        rows = [str(count) for count in options.rows]
        for isa in options.isa:
            command = [sys.executable, __file__, "--rows", *rows, *["--json"][: options.json]]
            subprocess.run(command, env={**os.environ, cpu_library.ISA_VARIABLE: isa}, check=True)
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)
    facts = {"isa": cpu_library.isa(), **machine()}
    records = measure(options.rows)
    if options.json:
        print(json.dumps({**facts, "records": records}))
        return
    print(
        ", ".join(
            f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in facts.items()
        )
    )
    print(f"{'op':<42}{'rows':>6}{'us':>10}{'GFLOP/s':>10}{'GB/s':>10}{'x torch':>10}")
    for record in records:
        print(show(record))


if __name__ == "__main__":
    main()
