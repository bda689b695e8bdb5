"""How the cores of a machine are shared by the threads that load pictures and those of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vtk.errors import UsageError

# More of them cost memory, each for its slot and its activations.
MAX_LANES = 8
# Of one kind; each loading thread holds a decoded picture.
MAX_THREADS = 1024


@dataclass(frozen=True)
class CoreSplit:
    """cores: usable ones. workers: threads that load pictures. lanes: batches inferred at once. threads: of the engine,
    per lane.
    """

    cores: int
    workers: int
    lanes: int
    threads: int


def default_batch(batches: Sequence[int], *, gpu: bool) -> int:
    """The batch size that costs least per picture: on a GPU the largest, in lanes of one thread the smallest.

    There a batch spares no launches, and its activations fall out of the cache: per picture, batch 8 takes 22 % more
    processor time than batch 1 for DEIMv2-Atto and 5 % for DINOv3-S, batch 4 17 % for D-FINE-N.
    """
    return max(batches) if gpu else min(batches)


def split_cores(cores: int, *, workers: int | None = None, engine_threads: int | None = None) -> CoreSplit:
    """The split for `cores` usable cores; what is given is kept. Raises UsageError for more threads than make sense.

    A lane has one thread as long as the lanes suffice for the cores: on two cores, two lanes of one thread need 8 %
    (DEIMv2-Atto, one picture at a time) to 30 % (DINOv3-S, eight at a time) less processor time per picture than one
    lane of two, whose threads wait for each other. Loading threads and lanes may both fill the cores: when one side
    falls behind, the other runs out of slots or pictures and sleeps. There are more loading threads than cores, as some
    wait for their turn with a small picture while others work on a large one before it.
    """
    for flag, given in (("--workers", workers), ("--engine-threads", engine_threads)):
        if given is not None and given > MAX_THREADS:
            raise UsageError(f"{flag} {given} is more than {MAX_THREADS} threads, on {cores} cores.")
    threads = engine_threads or -(-cores // MAX_LANES)
    return CoreSplit(cores, workers or cores + max(2, cores // 2), max(1, cores // threads), threads)
