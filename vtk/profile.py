"""Where the time of a run goes: busy seconds of every stage, what bounds the whole, and what would change that."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

# Threads that share stages, in the order in which a picture meets them.
POOLS = {
    "load": ("read", "decode", "preprocess"),
    "infer": ("infer",),
    "finish": ("postprocess", "write"),
    "commit": ("commit",),
}
STAGES = tuple(stage for stages in POOLS.values() for stage in stages)
BUSY = 0.85  # of the time: above that a pool, or the cores, are what all others wait for


@dataclass
class Stage:
    """Sums over all threads. busy: seconds from begin to end. cpu: processor seconds of the threads that called."""

    busy: float = 0.0
    cpu: float = 0.0
    calls: int = 0


@dataclass
class Profile:
    """Clocks of a run. wall: seconds. cpu: processor seconds of the whole process. threads: of each pool.

    gpu_decoding: pictures `decoded` on a GPU and `refused` there; None where none was asked for.
    """

    stages: dict[str, Stage] = field(default_factory=lambda: {name: Stage() for name in STAGES})
    threads: dict[str, int] = field(default_factory=lambda: dict.fromkeys(POOLS, 1))
    wall: float = 0.0
    cpu: float = 0.0
    gpu_decoding: Counter[str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def running(self, **threads: int) -> Iterator[None]:
        """Count the block as time of the run, with so many threads per pool."""
        self.threads.update(threads)
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the block as work of `stage`, also when it raises; from any thread."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            with self._lock:
                entry = self.stages[stage]
                entry.busy, entry.cpu, entry.calls = entry.busy + wall, entry.cpu + cpu, entry.calls + 1

    @property
    def pictures(self) -> int:
        return self.stages["commit"].calls

    @property
    def overlap(self) -> float:
        """How many threads were at work on average."""
        return sum(stage.busy for stage in self.stages.values()) / max(self.wall, 1e-9)

    def pool_load(self) -> dict[str, float]:
        """Of each pool the part of the time, 0..1, in which its threads were busy."""
        return {
            pool: sum(self.stages[stage].busy for stage in stages) / self.threads[pool] / max(self.wall, 1e-9)
            for pool, stages in POOLS.items()
        }

    def core_load(self, cores: int) -> float:
        """The part of the processor time of all cores, 0..1, that this process took."""
        return self.cpu / cores / max(self.wall, 1e-9)


@dataclass(frozen=True)
class Verdict:
    """efficiency: the time that the bound alone takes as a part of the whole, 0..1. advice: what would change most."""

    bound: str
    efficiency: float
    advice: str


ADVICE: Mapping[str, str] = {
    "read": "put the pictures on a faster disk, or raise --workers to wait for more of them at once",
    "decode": "--fast-decode decodes JPEG at a fraction of its size; or raise --workers where cores are idle",
    "preprocess": "store smaller pictures, or raise --workers where cores are idle",
    "infer": "a smaller model or input size, a GPU, or half precision where the hardware has it",
    "postprocess": "raise --score or lower --max-detections, so that less is kept",
    "write": "leave out formats that write a file per picture",
    "commit": "leave out formats, or write to a faster disk",
}


def judge(profile: Profile, cores: int) -> Verdict:
    """What the run waited for: all cores, one pool of threads, or, where neither was busy, others on this machine."""
    load = profile.pool_load()
    pool = max(load, key=lambda name: load[name])
    used = profile.core_load(cores)
    if used >= BUSY or used >= load[pool]:
        stage = max(STAGES, key=lambda name: profile.stages[name].cpu)
        return Verdict(f"the processor, most of it for {stage}", min(1.0, used), ADVICE[stage])
    stage = max(POOLS[pool], key=lambda name: profile.stages[name].busy)
    if load[pool] >= BUSY:
        count = profile.threads[pool]
        who = f"the {count} threads that {pool}" if count > 1 else f"the one thread to {pool}"
        return Verdict(f"{who}, most for {stage}", load[pool], ADVICE[stage])
    return Verdict("nothing in particular", load[pool], "more pictures per run: the first and last batches run alone")
