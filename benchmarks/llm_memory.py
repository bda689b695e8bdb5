"""Resident memory of an engine over thousands of requests: python benchmarks/llm_memory.py [--requests 2000].

Half of the prompts share a long beginning, half share nothing; every tenth request is dropped after its first token.
Prints the resident megabytes every `--every` requests. Exits with 1 if memory grows by 20 MB or more after the first
two samples, or if a block is not free at the end.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from vtk.demo_weights import smollm2
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.engine import Generation, LLMEngine
from vtk.llm_serving.load import load_engine
from vtk.llm_serving.sampling.params import SamplingParams

LIMIT_MB = 20
WARM_UP = 2


def resident_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def generations(rng: random.Random, count: int) -> Iterator[Generation]:
    """Random ids: half of the prompts after 64 common ones, which change from time to time as tenants come and go."""
    for number in range(count):
        if number % 100 == 0:
            prefix = rng.choices(range(100, 40_000), k=64)
        own = rng.choices(range(100, 40_000), k=rng.randint(1, 32))
        params = SamplingParams(temperature=0, max_tokens=rng.randint(1, 8), stop=["\n\n"], logprobs=number % 2)
        yield Generation(f"{number}", prefix + own if number % 2 else own, params)


def serve(engine: LLMEngine, arriving: Iterator[Generation], seats: int) -> Iterator[None]:
    """Keep `seats` requests live; yields once for each that ended."""
    live: set[str] = set()
    while True:
        for generation in itertools.islice(arriving, seats - len(live)):
            engine.add(generation)
            live.add(generation.request_id)
        if not live:
            return
        for delta in engine.step():
            if delta.request_id.endswith("7"):
                engine.abort(delta.request_id)
            if not engine.is_live(delta.request_id):
                live.remove(delta.request_id)
                yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--linear-mode", choices=("exact", "quantized"), default="quantized")
    args = parser.parse_args()
    if args.requests < (WARM_UP + 1) * args.every:
        parser.error(f"--requests must be at least {WARM_UP + 1} times --every: the first {WARM_UP} samples warm up")
    settings = EngineArgs(linear_mode=args.linear_mode, max_num_seqs=32, cpu_kvcache_space=0.1)
    engine = load_engine(args.model or smollm2(), settings).engine
    start, samples = time.monotonic(), []
    arriving = generations(random.Random(0), args.requests)
    for ended, _ in enumerate(serve(engine, arriving, seats=48), start=1):
        if ended % args.every == 0:
            samples.append(resident_mb())
            print(f"{ended:6} requests  {samples[-1]:7.1f} MB  {time.monotonic() - start:6.1f} s", flush=True)
    growth = max(samples[WARM_UP:]) - samples[WARM_UP - 1]
    pool = engine.scheduler.pool
    kept = pool.num_blocks - pool.num_free
    print(f"growth {growth:.1f} MB (limit {LIMIT_MB}), {kept} of {pool.num_blocks} blocks kept, {engine.num_live} live")
    return 0 if growth < LIMIT_MB and not kept and not engine.num_live else 1


if __name__ == "__main__":
    sys.exit(main())
