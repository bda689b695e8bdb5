"""One engine in a process of its own: python worker.py ENGINE ARGUMENTS; requests and answers are lines of JSON.

Runs in the interpreter of the engine, so it imports nothing of ours. A request names an operation of `Peer` and its
arguments; the answer holds what it returned and the CPU and wall seconds it took. The first line it writes says that
the engine is ready, or why it is not.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol, TextIO


class Peer(Protocol):
    """What is asked of an engine. Every prompt is new to it; outputs are greedy and never end by themselves."""

    name: str

    def prefill(self, prompt: list[int]) -> None:
        """Compute a prompt up to its first output token, and forget it."""

    def start(self, prompts: list[list[int]]) -> None:
        """Compute prompts of one length and hold them for `decode`."""

    def decode(self, steps: int) -> None:
        """One token for each prompt held, `steps` times."""

    def keep(self, count: int) -> None:
        """Hold only so many of the prompts on."""

    def first_tokens(self, prompts: list[list[int]], max_tokens: int) -> list[tuple[float, float]] | None:
        """Serve prompts that arrive together; CPU and wall seconds to each first token. None if it has no server."""


def clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def timed(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    cpu, wall = clocks()
    result = getattr(peer, request["call"])(*request["arguments"])
    now_cpu, now_wall = clocks()
    return {"result": result, "cpu": now_cpu - cpu, "wall": now_wall - wall, "peak_mb": peak_mb()}


def peak_mb() -> int:
    """The most memory that was resident; ru_maxrss would count the driver's as well, from before the exec."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def serve(peer: Peer, answers: TextIO) -> None:
    for line in sys.stdin:
        print(json.dumps(timed(peer, json.loads(line))), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines print as they like: only answers go to the driver
    try:
        peer = importlib.import_module(sys.argv[1]).make(*sys.argv[2:])
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({"name": peer.name}), file=answers, flush=True)
    serve(peer, answers)


if __name__ == "__main__":
    main()
