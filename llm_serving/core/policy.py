"""In which order prompts are served. Preemption has one order of its own, the same for all policies: `rank`."""

from __future__ import annotations

from collections.abc import Iterable

from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.request import Request


def rank(request: Request) -> tuple[int, int]:
    """Who keeps memory: lower priority value first, then whoever came first. The worst rank is preempted first.

    No two ranks are equal, so somebody can always go on.
    """
    return request.priority, request.sequence


def serving_order(requests: Iterable[Request], config: SchedulerConfig, now: float) -> list[Request]:
    """Running prefills and waiting requests, in the order in which they get what is left of a step."""
    if config.scheduling_policy == "priority":
        return sorted(requests, key=rank)
    if config.scheduling_policy == "short_first":
        return sorted(requests, key=lambda request: _short_first(request, now - config.short_first_max_wait))
    return sorted(requests, key=lambda request: request.sequence)


def _short_first(request: Request, overdue_before: float) -> tuple[bool, int, int]:
    """Whoever waited too long comes first, by arrival; the others by tokens left to compute."""
    if request.arrival <= overdue_before:
        return False, request.sequence, 0
    return True, request.num_pending, request.sequence
