"""Which cores the engine computes on, so that tokenizers and servers can have the others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vtk.errors import UsageError

_NODES = Path("/sys/devices/system/node")


def num_usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_cpus(text: str) -> frozenset[int]:
    """`0-3,8` or `node1` (the cores of a NUMA node) as core numbers.

    Raises UsageError for other text, for a node that is not there, and for cores that the process may not use.
    """
    numbers = _node_cpus(text) if text.startswith("node") else text
    cpus: set[int] = set()
    for part in numbers.strip().split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match is None:
            raise UsageError(
                f"cpu_affinity is a list of cores such as 0-3,8 or a NUMA node such as node0; got '{text}'."
            )
        cpus.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    if not cpus or not cpus <= usable:
        raise UsageError(
            f"cpu_affinity '{text}' names cores that this process may not use.",
            hint=f"Usable: {', '.join(map(str, sorted(usable))) or 'none; this system cannot bind threads to cores'}.",
        )
    return frozenset(cpus)


@contextmanager
def pinned(cpus: frozenset[int] | None) -> Iterator[None]:
    """Bind the calling thread, and every thread that it starts meanwhile, to these cores; None changes nothing.

    Memory is taken from the NUMA node of the core that first writes it: load weights in here as well.
    """
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _node_cpus(text: str) -> str:
    path = _NODES / text / "cpulist"
    if not re.fullmatch(r"node\d{1,4}", text) or not path.is_file():
        raise UsageError(f"There is no NUMA node '{text}'.", hint="List cores instead, for example 0-3.")
    return path.read_text()
