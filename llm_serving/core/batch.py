"""What one step of the engine computes, and such a step while it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vtk.llm_serving.core.request import Request


@dataclass(frozen=True)
class Batch:
    """One step: new tokens per request, and blocks to copy (source, target) before it runs.

    num_decodes of the requests compute the one token that they sampled last; the others are at their prompts, or at
    what a preemption took from them.
    """

    num_new: Mapping[Request, int]
    copies: tuple[tuple[int, int], ...] = ()
    num_decodes: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(self.num_new.values())

    def sampling(self) -> list[Request]:
        """The requests whose last known token this step computes: each gets one new token."""
        return [request for request, count in self.num_new.items() if request.num_pending == count]


@dataclass
class StepPlan:
    """A batch in the making. budget: tokens that still fit. admitted: the requests that start in it."""

    budget: int
    num_new: dict[Request, int] = field(default_factory=dict)
    copies: list[tuple[int, int]] = field(default_factory=list)
    admitted: set[Request] = field(default_factory=set)

    def add(self, request: Request, count: int) -> None:
        self.num_new[request] = count
        self.budget -= count
