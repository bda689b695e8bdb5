"""Time to first token when clients share a prompt's beginning: before (static batches), and after, in one run.

    python benchmarks/llm_ttft.py [--clients 16] [--shared 400] [--rounds 3] [--gap 0.1] [--model MODEL]

Same weights, same machine, same load: `--clients` requests arrive `--gap` seconds apart (0: all at once), each with
`--shared` common tokens and 50 of its own, 32 output tokens. The configurations take turns, round by round, every
round with fresh prompts on a cold cache. Prints P50 and P95 over all rounds, and each as a ratio to the first line.
"""

from __future__ import annotations

import argparse
import os
import random
import threading
import time
from pathlib import Path

import numpy as np

from vtk import LLM, SamplingParams
from vtk.demo_weights import smollm2

OWN_TOKENS, OUTPUT_TOKENS = 50, 32
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "static batches": {"scheduling": "static", "enable_prefix_caching": False},
    "continuous, cache off": {"enable_prefix_caching": False},
    "continuous, cache on": {},
}


def measure(llm: LLM, prompts: list[list[int]], gap: float) -> tuple[list[float], float]:
    """Seconds to the first token of each client, and of the whole round."""
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    first: list[float] = [0.0] * len(prompts)

    def client(index: int) -> None:
        time.sleep(gap * index)
        start = time.monotonic()
        for _ in llm.stream(prompts[index], params):
            first[index] = first[index] or time.monotonic() - start

    threads = [threading.Thread(target=client, args=(index,)) for index in range(len(prompts))]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return first, time.monotonic() - start


def make_prompts(rng: random.Random, clients: int, shared: int) -> list[list[int]]:
    """Random ids above the special ones: nothing but the stated prefix is common."""
    prefix = rng.choices(range(100, 40_000), k=shared)
    return [prefix + rng.choices(range(100, 40_000), k=OWN_TOKENS) for _ in range(clients)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--shared", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gap", type=float, default=0.1)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--linear-mode", choices=("exact", "quantized"), default="quantized")
    args = parser.parse_args()
    rng = random.Random(0)
    model = args.model or smollm2()
    ttft: dict[str, list[float]] = {name: [] for name in CONFIGURATIONS}
    walls: dict[str, list[float]] = {name: [] for name in CONFIGURATIONS}
    for _ in range(args.rounds):
        prompts = make_prompts(rng, args.clients, args.shared)
        for name, options in CONFIGURATIONS.items():
            with LLM(model, linear_mode=args.linear_mode, max_model_len=2048, **options) as llm:  # type: ignore[arg-type]
                llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2))
                first, wall = measure(llm, prompts, args.gap)
            ttft[name] += first
            walls[name].append(wall)
    report(args, ttft, walls)


def report(args: argparse.Namespace, ttft: dict[str, list[float]], walls: dict[str, list[float]]) -> None:
    print(f"{args.clients} clients {args.gap} s apart, {args.shared} shared tokens, {args.linear_mode} mode", end="; ")
    print(f"{args.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    base = np.percentile(next(iter(ttft.values())), [50, 95])
    for name, seconds in ttft.items():
        p50, p95 = np.percentile(seconds, [50, 95])
        print(f"{name:24} TTFT P50 {p50 * 1e3:6.0f} ms ({p50 / base[0]:.2f})", end="  ")
        print(f"P95 {p95 * 1e3:6.0f} ms ({p95 / base[1]:.2f})  round {np.median(walls[name]):5.1f} s")


if __name__ == "__main__":
    main()
