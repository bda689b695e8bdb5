"""What the parts of the GPU script share: a figure, a clock, the chip's ceilings, how a part is started."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

import torch
from devices import EagerDevice

from vtk.kernels.cuda_device import CudaDevice
from vtk.kernels.device import Device, Event
from vtk.kernels.host_device import HostDevice

V = TypeVar("V")
FLUSHED_BYTES = 512 << 20  # more than any L2 holds; overwriting it also gives the host time to queue what is measured
DRY_SECONDS = 1e-3


@dataclass(frozen=True)
class Row:
    """One figure. share: of what the chip's measured ceilings allow, 0..1. error: why there is no figure."""

    what: str
    value: float | None = None
    unit: str = ""
    share: float | None = None
    note: str = ""
    error: str = ""


@dataclass(frozen=True)
class Ceilings:
    """Of one chip, as measured: GB/s copied (read and written bytes together), TFLOP/s of a bfloat16 product."""

    gb_per_second: float
    tflops: float

    def floor(self, num_bytes: float, flops: float) -> float:
        """Seconds that moving and computing take at least, one behind the other."""
        return max(num_bytes / self.gb_per_second / 1e9, flops / self.tflops / 1e12)


class Clock(Protocol):
    """How long work takes on the device."""

    def seconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        """The median of `repeats` runs after two that do not count."""
        ...


class CudaClock:
    """Event timings, each with an L2 that holds nothing of the work."""

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")

    def seconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        for _ in range(2):
            work()
        spans = [self._queue(work) for _ in range(repeats)]
        torch.cuda.synchronize()
        return statistics.median(float(start.elapsed_time(stop)) for start, stop in spans) / 1e3

    def _queue(self, work: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._flushed.zero_()
        start.record()
        work()
        stop.record()
        return start, stop


class DryClock:
    """Runs the work once and reports the same time for everything."""

    def seconds(self, work: Callable[[], object], repeats: int = 20) -> float:
        work()
        return DRY_SECONDS


@dataclass(frozen=True)
class Bench:
    """Where a part runs. Dry: on the CPU, with tiny sizes, kernels in Triton's interpreter and no real times.

    now: seconds of the host's clock; in a dry run each look at it is as long after the one before.
    """

    device: torch.device
    clock: Clock
    ceilings: Ceilings
    now: Callable[[], float]
    dry: bool

    @property
    def name(self) -> str:
        return "the CPU" if self.dry else torch.cuda.get_device_name(self.device)

    def pick(self, full: V, tiny: V) -> V:
        """The first on a GPU, the second in a dry run."""
        return tiny if self.dry else full

    def wait(self, event: Event) -> None:
        """Lets what is queued on the current stream from now on wait for another stream's event."""
        if isinstance(event, torch.cuda.Event):
            torch.cuda.current_stream(self.device).wait_event(event)

    def runner_device(self, *, graphs: bool = True) -> Device:
        """What a CUDA runner is built on."""
        if self.dry:
            return HostDevice()
        return (CudaDevice if graphs else EagerDevice)(self.device)


def make_bench(*, dry: bool, ceilings: Ceilings) -> Bench:
    """SystemExit where there is no GPU for a run that is not dry."""
    if dry:
        ticks = itertools.count()
        return Bench(torch.device("cpu"), DryClock(), ceilings, lambda: next(ticks) * DRY_SECONDS, True)
    if not torch.cuda.is_available():
        raise SystemExit(f"no CUDA device: PyTorch {torch.__version__} finds none; --dry-run needs none")
    return Bench(torch.device("cuda", torch.cuda.current_device()), CudaClock(), ceilings, time.perf_counter, False)


def attempt(what: str, work: Callable[[], Row | list[Row]]) -> list[Row]:
    """Its rows, or one that says why there are none: the figures after it are still wanted."""
    try:
        found = work()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return [Row(what, error=f"{type(error).__name__}: {lines[0]}"[:200])]
    return [found] if isinstance(found, Row) else found


def run_part(measure: Callable[[Bench], Iterator[Row]]) -> None:
    """The command line of a part: prints each row as one line of JSON as soon as it is there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--gb-per-second", type=float, default=1.0, help="the chip's ceilings, for shares of them")
    parser.add_argument("--tflops", type=float, default=1.0)
    args = parser.parse_args()
    bench = make_bench(dry=args.dry_run, ceilings=Ceilings(args.gb_per_second, args.tflops))
    for row in measure(bench):
        print(json.dumps(asdict(row)), flush=True)
