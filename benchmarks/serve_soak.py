"""Many clients of every kind at one server, for minutes: is every answer right, and does anything leak?

    python benchmarks/serve_soak.py [--seconds 600] [--clients 64] [--models DIR] [--json FILE]

Starts `vtk serve --vision --llm` with gRPC over the demo models (`vtk pull-demo` makes them), with so little room that
sequences are preempted and requests refused. What each request must get is recorded first, with nobody else there; then
`--clients` clients ask at random, some of them slow readers, some leaving in the middle of anything, while the
detector is loaded again every minute. An answer is right when it equals the recorded one, or is a refusal with its
reason where one was due. A first tenth of the time fills pools and caches; leaks are counted from there. At the end
nothing may run, wait or hold a block, and no descriptor may be left; memory and threads, whose pools grow and shrink as
they are needed, may not grow through the second half of the load. Then the server is killed with SIGKILL
under load, started on the same port, asked everything again, and told to end. Exits with 1 if anything of this fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from soak.asks import HttpAsk, Recorded, RefusedError, Target, WrongError, record
from soak.judge import plain
from soak.mix import Mix
from soak.server import ServerProcess, Usage

ROOT = Path(__file__).parents[1]
TOYS = ROOT / "tests" / "data" / "golden" / "toy_images"
LLM, DETECTOR, EMBEDDER = "smollm2", "toy-deim", "dinov2-s"
RELOAD_SECONDS, IDLE_SECONDS = 60.0, 60.0
REPORT_EVERY = 30  # samples, one a second
SLOW_SHARE, LEAVE_SHARE = 0.1, 0.2
# Of the medians of the second half of the load, from its first to its last third.
MAX_GROWTH = {"rss": 0.03, "threads": 0.1}
MIB = 1 << 20


@dataclass
class Tally:
    """What became of the requests, by kind."""

    right: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    def blame(self, kind: str, detail: object) -> None:
        self.wrong[kind] += 1
        if len(self.details) < 40:
            self.details.append(f"{kind}: {detail}")
            print(self.details[-1], file=sys.stderr, flush=True)


async def ask(item: Recorded, target: Target, tally: Tally, *, slow: bool = False) -> bool:
    """Whether there was an answer, right or wrong."""
    kind = item.ask.kind
    try:
        await item.check(target, slow=slow)
        tally.right[kind] += 1
    except RefusedError:
        tally.refused[kind] += 1
        return False
    except WrongError as error:
        tally.blame(kind, error)
    return True


async def client(seed: int, recorded: list[Recorded], target: Target, tally: Tally, end: float) -> None:
    rng = random.Random(seed)
    weights = [item.ask.weight for item in recorded]
    while time.monotonic() < end:
        item, chance = rng.choices(recorded, weights)[0], rng.random()
        if chance < LEAVE_SHARE:
            await item.ask.leave(target, rng)
            tally.left[item.ask.kind] += 1
        elif not await ask(item, target, tally, slow=chance < LEAVE_SHARE + SLOW_SHARE):
            await asyncio.sleep(rng.random())


async def reload(target: Target, tally: Tally, interval: float) -> None:
    """Load the detector again and again."""
    loading = HttpAsk("reload", f"/v2/repository/models/{DETECTOR}/load", b"{}", plain)
    while True:
        await asyncio.sleep(interval)
        try:
            await loading.answer(target)
            tally.right["reload"] += 1
        except (WrongError, RefusedError) as error:
            tally.blame("reload", error)


async def watch(server: ServerProcess, samples: list[Usage], tally: Tally) -> None:
    """A sample every second, a line every `REPORT_EVERY` of them."""
    started = time.monotonic()
    while True:
        samples.append(server.usage())
        if len(samples) % REPORT_EVERY == 1:
            now = samples[-1]
            print(
                f"{time.monotonic() - started:6.0f} s  RSS {now.rss / MIB:7.0f} MiB  threads {now.threads:4d}  "
                f"sockets {now.sockets:4d}  files {now.files:4d}  right {tally.right.total():6d}  "
                f"refused {tally.refused.total():5d}  wrong {tally.wrong.total():3d}",
                flush=True,
            )
        await asyncio.sleep(1)


async def load(
    server: ServerProcess, recorded: list[Recorded], args: argparse.Namespace, seconds: float, tally: Tally
) -> list[Usage]:
    """Clients, reloads and samples for so many seconds and as long as the last answers take; the samples."""
    target = Target(server.port, server.grpc_port)
    samples: list[Usage] = []
    others = [
        asyncio.ensure_future(reload(target, tally, min(RELOAD_SECONDS, seconds / 3))),
        asyncio.ensure_future(watch(server, samples, tally)),
    ]
    end = time.monotonic() + seconds
    seeds = range(tally.right.total(), tally.right.total() + args.clients)
    await asyncio.gather(*(client(seed, recorded, target, tally, end) for seed in seeds))
    for task in others:
        task.cancel()
    for error in await asyncio.gather(*others, return_exceptions=True):
        if isinstance(error, Exception):
            raise error
    return samples


def growth(samples: list[Usage], name: str) -> float:
    """Of the second half: from its first third to its last, as a share."""
    half = [getattr(sample, name) for sample in samples[len(samples) // 2 :]]
    third = max(1, len(half) // 3)
    return median(half[-third:]) / median(half[:third]) - 1


def idle(server: ServerProcess, problems: list[str]) -> Usage:
    """What the server holds once it has nothing to do."""
    if busy := server.busy(IDLE_SECONDS):
        problems.append(f"not idle after {IDLE_SECONDS:g} s: {busy}")
    time.sleep(1)  # until the connection of the last look is gone too
    return server.usage()


async def killed_under_load(server: ServerProcess, recorded: list[Recorded], args: argparse.Namespace) -> None:
    """Clients that see their server die; what they get then is nobody's fault."""
    target, end = Target(server.port, server.grpc_port), time.monotonic() + 60
    clients = [asyncio.ensure_future(client(seed, recorded, target, Tally(), end)) for seed in range(args.clients)]
    await asyncio.sleep(3)
    server.kill()
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def answers_again(recorded: list[Recorded], target: Target, tally: Tally) -> None:
    """Everything once more, one after the other."""
    for item in recorded:
        await ask(item, target, tally)


@dataclass(frozen=True)
class Life:
    """Of the first server: what it was asked, and what it held. before, after: idle, around the main load."""

    recorded: list[Recorded]
    tally: Tally
    before: Usage
    after: Usage
    samples: list[Usage]
    metrics: dict[str, float]


def first_life(server: ServerProcess, args: argparse.Namespace, problems: list[str]) -> Life:
    """Record, load twice, look what is left, and kill the server while it works."""
    tally = Tally()
    recorded = asyncio.run(record_all(Target(server.port, server.grpc_port)))
    print(f"{len(recorded)} requests recorded; ready after {server.start_seconds:.1f} s", flush=True)
    asyncio.run(load(server, recorded, args, args.seconds / 10, tally))
    before = idle(server, problems)
    samples = asyncio.run(load(server, recorded, args, args.seconds * 0.9, tally))
    life = Life(recorded, tally, before, idle(server, problems), samples, server.metrics())
    asyncio.run(killed_under_load(server, recorded, args))
    return life


def second_life(server: ServerProcess, recorded: list[Recorded], problems: list[str]) -> None:
    """Everything once more, and an end as it should be."""
    again = Tally()
    asyncio.run(answers_again(recorded, Target(server.port, server.grpc_port), again))
    problems += [f"after the restart: {detail}" for detail in again.details]
    idle(server, problems)
    if code := server.end():
        problems.append(f"exit code {code} after SIGTERM")
    problems += [f"in the log: {fault}" for fault in server.faults()[:10]]


def soak(args: argparse.Namespace, home: Path) -> dict[str, Any]:
    """All of it; `problems` of the result is empty if all went well."""
    problems: list[str] = []
    with closing(ServerProcess(args.models, home)) as server:
        life = first_life(server, args, problems)
    with closing(ServerProcess(args.models, home, port=server.port, grpc_port=server.grpc_port)) as second:
        second_life(second, life.recorded, problems)
    grown, tally = {name: growth(life.samples, name) for name in MAX_GROWTH}, life.tally
    problems += leaks(life.before, life.after, grown) + [f"wrong: {detail}" for detail in tally.details]
    return {
        "seconds": args.seconds, "clients": args.clients, "right": tally.right, "refused": tally.refused,
        "left": tally.left, "wrong": tally.wrong, "before": asdict(life.before), "after": asdict(life.after),
        "peak_threads": max(sample.threads for sample in life.samples),
        "rss": [sample.rss for sample in life.samples[::REPORT_EVERY]], "growth": grown,
        "restart_seconds": second.start_seconds, "preemptions": life.metrics["vllm:num_preemptions_total"],
        "evictions": life.metrics["vtk:kv_block_evictions_total"], "problems": problems,
    }  # fmt: skip


async def record_all(target: Target) -> list[Recorded]:
    mix = Mix(target, llm=LLM, detector=DETECTOR, embedder=EMBEDDER, pictures=sorted(TOYS.glob("*.jpg"))[:4])
    return await record(await mix.asks(), target)


def leaks(before: Usage, after: Usage, grown: dict[str, float]) -> list[str]:
    found = [
        f"{name}: {getattr(before, name)} before, {getattr(after, name)} after"
        for name in ("sockets", "files")
        if getattr(after, name) > getattr(before, name)
    ]
    return found + [
        f"{name} grew by {share:.1%} in the second half" for name, share in grown.items() if share > MAX_GROWTH[name]
    ]


def table(result: dict[str, Any]) -> str:
    kinds = sorted({kind for column in ("right", "refused", "left", "wrong") for kind in result[column]})
    lines = [f"{'kind':<26}{'right':>8}{'refused':>9}{'left':>7}{'wrong':>7}"]
    for kind in kinds:
        right, refused, left, wrong = (result[column][kind] for column in ("right", "refused", "left", "wrong"))
        lines.append(f"{kind:<26}{right:>8}{refused:>9}{left:>7}{wrong:>7}")
    totals = [result[column].total() for column in ("right", "refused", "left", "wrong")]
    lines.append(f"{'all':<26}{totals[0]:>8}{totals[1]:>9}{totals[2]:>7}{totals[3]:>7}")
    before, after = result["before"], result["after"]
    lines.append(
        f"idle before / after: RSS {before['rss'] / MIB:.0f} / {after['rss'] / MIB:.0f} MiB, threads "
        f"{before['threads']} / {after['threads']} (peak {result['peak_threads']}), sockets {before['sockets']} / "
        f"{after['sockets']}, files {before['files']} / {after['files']}; "
        f"in the second half RSS {result['growth']['rss']:+.1%}, threads {result['growth']['threads']:+.1%}; "
        f"{result['preemptions']:.0f} preemptions, {result['evictions']:.0f} evictions; "
        f"ready {result['restart_seconds']:.1f} s after SIGKILL"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    home = Path(os.environ.get("VTK_HOME") or "~/.vtk").expanduser()
    parser.add_argument("--models", type=Path, default=home / "models")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends with this process
    with tempfile.TemporaryDirectory() as scratch:
        result = soak(args, Path(scratch))
    print(table(result))
    for problem in result["problems"]:
        print(problem)
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1))
    print("FAILED" if result["problems"] else "all answers right, nothing left behind")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
