"""One memory budget for everything that is served: weights, activations, and the KV cache of language models."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vtk.errors import UsageError
from vtk.llm_serving.heap import trim_heap
from vtk.serving.settings import RuntimeSettings

MIB = 1 << 20
GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_HINT = "Serve fewer models, or raise the memory that they may take (--memory, --gpu-memory-utilization)."


@dataclass(frozen=True)
class Footprint:
    """What one model takes, in bytes.

    weights: its weight and engine files as loaded. activations: measured while it warms up, all else that it took.
    kv: keys and values of a language model. cache: features of pictures that a promptable model may remember.
    """

    weights: int = 0
    activations: int = 0
    kv: int = 0
    cache: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.kv + self.cache


class Reservation:
    """The part of a budget that one model holds until `release`."""

    def __init__(self, budget: MemoryBudget, label: str, footprint: Footprint) -> None:
        self._budget = budget
        self.label = label
        self.footprint = footprint

    def measure(self, grown: int) -> None:
        """What the process has grown by, less the weights, is activations, if that is more than was estimated.

        UsageError when it does not fit.
        """
        now = self.footprint
        self._budget._settle(self, replace(now, activations=max(now.activations, grown - now.weights)))

    def release(self) -> None:
        """Give it back, to the system too; the second call does nothing."""
        trim_heap()
        self._budget._release(self)


class MemoryBudget:
    """`total` bytes, handed out to models; what does not fit is refused. Any thread may call."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()
        self._held: list[Reservation] = []

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        with self._lock:
            return self._free()

    def reserve(self, label: str, footprint: Footprint) -> Reservation:
        """Hold memory for a model before it is loaded. UsageError with both numbers when it does not fit."""
        reservation = Reservation(self, label, footprint)
        with self._lock:
            self._check(label, footprint.total, self._free())
            self._held.append(reservation)
        return reservation

    def explain(self) -> str:
        """A table: who holds how much of what, in MiB."""
        with self._lock:
            held = [(item.label, item.footprint) for item in self._held]
        rows: list[tuple[str, ...]] = [("model", "weights", "activations", "KV", "cache", "total")]
        rows += [(label, *map(_mib, (f.weights, f.activations, f.kv, f.cache, f.total))) for label, f in held]
        taken = sum(footprint.total for _, footprint in held)
        rows += [("free", *[""] * 4, _mib(self.total - taken)), ("budget, MiB", *[""] * 4, _mib(self.total))]
        return _table(rows)

    def _free(self) -> int:
        return self.total - sum(item.footprint.total for item in self._held)

    def _check(self, label: str, needed: int, free: int) -> None:
        if needed > free:
            raise UsageError(
                f"{label} needs {_mib(needed)} MiB and {_mib(max(free, 0))} of {_mib(self.total)} MiB are free.",
                hint=_HINT,
            )

    def _settle(self, reservation: Reservation, footprint: Footprint) -> None:
        with self._lock:
            self._check(reservation.label, footprint.total, self._free() + reservation.footprint.total)
            reservation.footprint = footprint

    def _release(self, reservation: Reservation) -> None:
        with self._lock:
            if reservation in self._held:
                self._held.remove(reservation)


def memory_for(settings: RuntimeSettings) -> int:
    """Bytes that the models may take together. UsageError when the machine has less than what is asked for."""
    available = available_memory()
    if settings.memory_bytes is None:
        return int(available * settings.gpu_memory_utilization)
    if settings.memory_bytes > available:
        raise UsageError(
            f"The models may take {_mib(settings.memory_bytes)} MiB and {_mib(available)} MiB are available.",
            hint="Lower --memory, or end other programs.",
        )
    return settings.memory_bytes


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Bytes that this process may still take: of the machine, and of the container that it runs in."""
    limits = [_machine_memory(meminfo)]
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        current = int((cgroup / "memory.current").read_text())
    except OSError:
        return limits[0]
    if limit != "max":
        limits.append(max(int(limit) - current, 0))
    return min(limits)


def resident_memory() -> int:
    """Bytes of this process that are in memory now, without what was freed; 0 where the system does not tell."""
    trim_heap()
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _machine_memory(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns two blanks apart, the first to the left and the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines: list[str] = []
    for label, *cells in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, others, strict=True))
        lines.append("  ".join([label.ljust(first), *numbers]))
    return "\n".join(lines)
