"""Greedy output of SmolLM2 against transformers in float32: 50 prompts of 1 to 3,000 tokens, batched in every way.

The reference is tests/data/llm/smollm2.json. A difference at a step whose two best logits are closer than 1e-3 counts
as a tie, ends the comparison of that prompt, and is listed. Exit code 1 for any other difference, and for a block that
is not free at the end. With `random aborts` each prompt comes twice, and the twin that shares its blocks is dropped at
a random step. With `preempted at every step` one of the running requests, drawn at random, loses its blocks after each
step and is computed again.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vtk.demo_weights import smollm2
from vtk.llm_serving.args import EngineArgs
from vtk.llm_serving.core.block_pool import BlockPool
from vtk.llm_serving.engine import Generation
from vtk.llm_serving.load import LoadedEngine, make_engine
from vtk.llm_serving.loading.source import ModelSource, load_model_source
from vtk.llm_serving.sampling.params import SamplingParams

ROOT = Path(__file__).parents[1]
ABORTS = "32 mixed, random aborts"
PREEMPTED = "preempted at every step"
WAYS: dict[str, dict[str, Any]] = {
    "alone": {"max_num_seqs": 1},
    "32 mixed, chunks of 512": {},
    "32 mixed, chunks of 64": {"long_prefill_token_threshold": 64},
    "32 mixed, chunks of 7": {"long_prefill_token_threshold": 7},
    "32 mixed, chunks of 1": {"long_prefill_token_threshold": 1},
    ABORTS: {},
    PREEMPTED: {},
    "32 mixed, no cache": {"enable_prefix_caching": False},
    "tiny pool": {"num_gpu_blocks_override": 200},
}


def prompts(source: ModelSource) -> list[tuple[list[int], dict[str, Any]]]:
    recorded = json.loads((ROOT / "tests/data/llm/smollm2.json").read_text())
    corpus = source.tokenizer.encode((ROOT / "LICENSE").read_text() * 2)
    slices = [(corpus[e["start"] : e["start"] + e["length"]], e) for e in recorded["slices"]]
    return [(e["ids"], e) for e in recorded["chats"] + recorded["sentences"]] + slices


def run(loaded: LoadedEngine, cases: list[tuple[list[int], dict[str, Any]]], seed: int, way: str) -> list[list[int]]:
    """All prompts in random order, arriving at random steps; their twins are dropped at random steps."""
    scheduler = loaded.engine.scheduler
    rng = np.random.default_rng(seed)
    waiting = list(rng.permutation(len(cases)))
    outputs: list[list[int]] = [[] for _ in cases]
    twins: list[str] = []
    while waiting or loaded.engine.has_work:
        arriving = int(rng.integers(0, 4))
        for index in waiting[:arriving]:
            ids, entry = cases[index]
            params = SamplingParams(temperature=0, max_tokens=len(entry["output"]))
            loaded.engine.add(Generation(str(index), ids, params))
            if way == ABORTS:
                twins.append(f"twin {index}")
                loaded.engine.add(Generation(twins[-1], ids, params))
        del waiting[:arriving]
        for delta in loaded.engine.step():
            if delta.request_id not in twins:
                outputs[int(delta.request_id)] += [sampled.token for sampled in delta.tokens]
        for twin in twins:
            if rng.random() < 0.1:
                loaded.engine.abort(twin)
        if way == PREEMPTED and (running := list(scheduler._running.values())):
            scheduler._preempt(running[rng.integers(len(running))])
        scheduler.check_integrity()
    return outputs


def differences(outputs: list[list[int]], cases: list[tuple[list[int], dict[str, Any]]]) -> tuple[int, int]:
    """Prompts that differ, and those that differ only after a tie."""
    wrong = tied = 0
    for output, (_, entry) in zip(outputs, cases, strict=True):
        if output != entry["output"]:
            until = min(entry["ties"], default=len(entry["output"]))
            is_tie = output[:until] == entry["output"][:until] and bool(entry["ties"])
            tied, wrong = tied + is_tie, wrong + (not is_tie)
    return wrong, tied


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--way", choices=WAYS, help="only this one")
    args = parser.parse_args()
    source = load_model_source(smollm2())
    cases = prompts(source)
    failed = 0
    for name in [args.way] if args.way else WAYS:
        settings = EngineArgs(backend=args.backend, max_num_seqs=32, max_num_batched_tokens=512)
        loaded = make_engine(source, replace(settings, **WAYS[name]))
        for cache in ("cold", "warm") if settings.enable_prefix_caching else ("cold",):
            start = time.perf_counter()
            wrong, tied = differences(run(loaded, cases, len(name), name), cases)
            pool: BlockPool = loaded.engine.scheduler.pool
            failed += wrong + pool.num_blocks - pool.num_free
            print(
                f"{name:26} {cache:5} {len(cases) - wrong - tied:3} equal, {tied} tied, {wrong} wrong; "
                f"{loaded.engine.scheduler.num_preemptions:3} preemptions, {loaded.engine.cache.stats.hits:6} cached, "
                f"{pool.num_blocks - pool.num_free} blocks left, {time.perf_counter() - start:6.1f} s",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
