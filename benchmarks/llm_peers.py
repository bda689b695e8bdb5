"""Ours and other engines on this machine, in one interleaved run: same model, one thread each, tokens per CPU-second.

    python benchmarks/llm_peers.py [--peer vllm=PYTHON]... [--core N] [--json FILE]

PYTHON is an interpreter that has the peer installed (transformers: this one unless named). Engines are processes that
live for the whole run and take turns, round by round, each pinned to the same core: prompts of 512 and 2,048 tokens;
then 32 sequences, each with a context of 256 tokens, decoded together, then 8 and 1 of them; then 8, 16 and 32 clients
that arrive together on a cold cache with 400 tokens in common, 50 of their own and 32 to generate. All prompts are
random ids, fresh each time. CPU time is what counts: other processes may use the machine. Prints medians (least to
most), then ours over each peer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from peers.hf_folder import write_hf_folder

from vtk.demo_weights import smollm2

WORKER = Path(__file__).resolve().parent / "peers" / "worker.py"
OURS = {"vtk exact": "exact", "vtk quantized": "quantized"}
PEERS = {
    "transformers": "engine_transformers",
    "llama.cpp": "engine_llama_cpp",
    "vllm": "engine_vllm",
    "openvino-genai": "engine_openvino_genai",
}
PREFILLS, BATCHES = (512, 2048), (32, 8, 1)
CLIENTS, SHARED, OWN, OUTPUT = (8, 16, 32), 400, 50, 32
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
PERCENTILES = (50, 95)


class EngineFailed(Exception):
    """A worker that ended or could not start, and why."""


@dataclass
class Engine:
    """One worker process and what was measured of it: by column, one value a round."""

    label: str
    process: subprocess.Popen[str]
    log: TextIO
    name: str = ""
    peak_mb: int = 0
    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def start(cls, label: str, python: str, arguments: list[str], folder: str, core: int | None) -> Engine:
        pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
        command = [*pinned, python, str(WORKER), *arguments]
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 it lives as long as the process
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        # Not in our own folder: peers import packages by names that it has as well.
        process = subprocess.Popen(command, text=True, cwd=folder, env=os.environ | ONE_THREAD, **pipes)
        engine = cls(label, process, log)
        hello = engine._answer()
        if "missing" in hello:
            raise EngineFailed(f"not installed ({hello['missing']})")
        engine.name = hello["name"]
        return engine

    def ask(self, call: str, *arguments: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(json.dumps({"call": call, "arguments": arguments}), file=self.process.stdin, flush=True)
        answer = self._answer()
        self.peak_mb = answer["peak_mb"]
        return answer

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            last = (self.log.read().splitlines() or ["no message"])[-1]
            raise EngineFailed(f"{self.label} ended with code {code}: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def random_prompts(rng: random.Random, count: int, length: int, shared: int = 0) -> list[list[int]]:
    prefix = rng.choices(range(100, 40_000), k=shared)
    return [prefix + rng.choices(range(100, 40_000), k=length - shared) for _ in range(count)]


def measure(engines: list[Engine], rng: random.Random, args: argparse.Namespace) -> None:
    for engine in engines:
        engine.ask("prefill", random_prompts(rng, 1, 64)[0])
    measure_prefill(engines, rng, args.rounds)
    measure_decode(engines, rng, args)
    measure_first_tokens(engines, rng, args.rounds)
    for engine in engines:
        engine.stop()


def measure_prefill(engines: list[Engine], rng: random.Random, rounds: int) -> None:
    for length in PREFILLS:
        for prompt in random_prompts(rng, rounds, length):
            for engine in engines:
                engine.values[f"prefill {length}"].append(length / engine.ask("prefill", prompt)["cpu"])


def measure_decode(engines: list[Engine], rng: random.Random, args: argparse.Namespace) -> None:
    prompts = random_prompts(rng, BATCHES[0], args.context)
    for engine in engines:
        engine.ask("start", prompts)
    for batch in BATCHES:
        for engine in engines:
            engine.ask("keep", batch)
            engine.ask("decode", 1)
        for _ in range(args.rounds):
            for engine in engines:
                engine.values[f"decode {batch}"].append(args.steps * batch / engine.ask("decode", args.steps)["cpu"])
    for engine in engines:
        engine.ask("keep", 0)


def measure_first_tokens(engines: list[Engine], rng: random.Random, rounds: int) -> None:
    for clients in CLIENTS:
        for _ in range(rounds if clients == CLIENTS[0] else min(rounds, 2)):
            prompts = random_prompts(rng, clients, SHARED + OWN, SHARED)
            for engine in engines:
                seconds = engine.ask("first_tokens", prompts, OUTPUT)["result"]
                if seconds is not None:
                    found = np.percentile([cpu for cpu, _ in seconds], PERCENTILES)
                    for key, value in zip(ttft_columns(clients), found, strict=True):
                        engine.values[key].append(float(value))


def ttft_columns(clients: int) -> list[str]:
    return [f"TTFT P{percent} {clients}" for percent in PERCENTILES]


def columns() -> list[str]:
    first = [name for clients in CLIENTS for name in ttft_columns(clients)]
    return [*(f"prefill {n}" for n in PREFILLS), *(f"decode {n}" for n in sorted(BATCHES)), *first]


def print_table(engines: list[Engine]) -> None:
    for engine in engines:
        print(f"\n{engine.label}: {engine.name}; peak {engine.peak_mb} MB")
        for column in columns():
            if values := engine.values[column]:
                print(f"  {column:12} {np.median(values):8.2f}  ({min(values):.2f} to {max(values):.2f})")


def print_ratios(engines: list[Engine]) -> None:
    """Above 1, ours is better: for times the ratio is the peer's over ours."""
    print("\nours against each peer (above 1: ours is faster)")
    for ours in (engine for engine in engines if engine.label in OURS):
        for peer in (engine for engine in engines if engine.label not in OURS):
            print(f"  {ours.label:14} / {peer.label:13}", end="")
            for column in columns():
                if peer.values[column]:
                    ratio = np.median(ours.values[column]) / np.median(peer.values[column])
                    print(f"  {column} {1 / ratio if column.startswith('TTFT') else ratio:.2f}", end="")
            print()


def as_json(engines: list[Engine], args: argparse.Namespace) -> str:
    found = {e.label: {"name": e.name, "peak_mb": e.peak_mb, **e.values} for e in engines}
    settings = {"rounds": args.rounds, "steps": args.steps, "context": args.context, "load": os.getloadavg()}
    return json.dumps({"settings": settings, "engines": found}, indent=1)


def start_engines(args: argparse.Namespace, folder: str) -> list[Engine]:
    model = str((args.model or smollm2()).resolve())
    write_hf_folder(Path(model), Path(folder))
    interpreters = {"transformers": sys.executable} | dict(peer.split("=", 1) for peer in args.peer)
    if unknown := sorted(interpreters.keys() - PEERS.keys()):
        sys.exit(f"unknown peer: {unknown[0]}; there are: {', '.join(PEERS)}")
    wanted = [(label, sys.executable, ["engine_vtk", model, folder, mode]) for label, mode in OURS.items()]
    wanted += [(label, interpreters.get(label, ""), [module, model, folder]) for label, module in PEERS.items()]
    started = [start_or_say_why(label, python, arguments, folder, args.core) for label, python, arguments in wanted]
    return [engine for engine in started if engine is not None]


def start_or_say_why(label: str, python: str, arguments: list[str], folder: str, core: int | None) -> Engine | None:
    try:
        if not Path(python).is_file():
            raise EngineFailed("not installed (name its interpreter with --peer)")
        return Engine.start(label, python, arguments, folder, core)
    except EngineFailed as error:
        print(f"{label}: {error}")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help=", ".join(PEERS))
    parser.add_argument("--model", type=Path, help="a GGUF file of a Llama (default: the packaged SmolLM2)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="decode steps a round")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--core", type=int, help="pin every engine to this core")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        engines = start_engines(args, folder)
        try:
            measure(engines, rng, args)
        except EngineFailed as error:
            sys.exit(str(error))
    load = os.getloadavg()[0]
    print(f"load {load:.1f}; prefill, decode: tokens per CPU-second; TTFT of so many clients: CPU-seconds")
    print_table(engines)
    print_ratios(engines)
    if args.json:
        args.json.write_text(as_json(engines, args))


if __name__ == "__main__":
    main()
