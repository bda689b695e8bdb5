"""Every kernel beside its floor: the time that its bytes and products take at the chip's measured ceilings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench import Bench, Row, attempt, run_part
from problems import Problem, all_problems


def measured(bench: Bench, make: Callable[[], Problem]) -> Row:
    problem = make()
    seconds = bench.clock.seconds(problem.work)
    floor = bench.ceilings.floor(problem.num_bytes, problem.flops)
    predicted = "a launch" if problem.predicted is None else f"{problem.predicted:.0%}"
    note = f"floor {floor * 1e6:.3g} us, predicted {predicted}"
    return Row(problem.name, seconds * 1e6, "us", floor / seconds, note)


def measure(bench: Bench) -> Iterator[Row]:
    for name, make in all_problems(bench):
        yield from attempt(name, partial(measured, bench, make))


if __name__ == "__main__":
    run_part(measure)
