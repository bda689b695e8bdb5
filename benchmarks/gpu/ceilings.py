"""What the chip reaches at best: bytes copied and bfloat16 products per second."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from bench import Bench, Row, attempt, run_part

BANDWIDTH, PRODUCTS = "copy bandwidth", "bf16 matmul"


def copy_bandwidth(bench: Bench) -> Row:
    """Bytes read and written, of a buffer far larger than L2."""
    size = bench.pick(2 << 30, 1 << 10)
    source, target = (torch.zeros(size, dtype=torch.uint8, device=bench.device) for _ in range(2))
    seconds = bench.clock.seconds(lambda: target.copy_(source))
    return Row(BANDWIDTH, 2 * size / seconds / 1e9, "GB/s", note=f"{size:,} bytes on {bench.name}")


def products(bench: Bench) -> Row:
    size = bench.pick(8192, 16)
    a, b = (torch.randn(size, size, device=bench.device).bfloat16() for _ in range(2))
    seconds = bench.clock.seconds(lambda: a @ b)
    return Row(PRODUCTS, 2 * size**3 / seconds / 1e12, "TFLOP/s", note=f"{size} cubed, cuBLAS")


def measure(bench: Bench) -> Iterator[Row]:
    yield from attempt(BANDWIDTH, partial(copy_bandwidth, bench))
    yield from attempt(PRODUCTS, partial(products, bench))


if __name__ == "__main__":
    run_part(measure)
