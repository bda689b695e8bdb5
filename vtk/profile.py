"""Where the time of a run goes: busy seconds of every stage, by the clock and by the processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# in the order in which a picture meets them
STAGES = ("read", "decode", "preprocess", "infer", "postprocess", "write", "commit")


@dataclass
class Stage:
    """Sums over all threads. busy: seconds from begin to end. cpu: seconds of processor time of the calling threads."""

    busy: float = 0.0
    cpu: float = 0.0
    calls: int = 0


@dataclass
class Profile:
    """Clocks of one run; `measure` may be used from any thread."""

    stages: dict[str, Stage] = field(default_factory=lambda: {name: Stage() for name in STAGES})
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Count the block as work of `stage`, also when it raises."""
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            with self._lock:
                entry = self.stages[stage]
                entry.busy, entry.cpu, entry.calls = entry.busy + wall, entry.cpu + cpu, entry.calls + 1
