"""Engines that are driven by `step()`, ours among them: they differ only in how requests go in and come out."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod


class StepLoopPeer(ABC):
    """See worker.Peer. The budget of a step and the number of seats are set by the engine's own module."""

    name: str

    def __init__(self) -> None:
        self._count = 0
        self._held: list[str] = []

    @abstractmethod
    def add(self, request_id: str, prompt: list[int], max_tokens: int) -> None: ...

    @abstractmethod
    def step(self) -> list[str]:
        """Compute one batch; the requests that got a token."""

    @abstractmethod
    def abort(self, request_ids: list[str]) -> None: ...

    @abstractmethod
    def has_work(self) -> bool: ...

    def prefill(self, prompt: list[int]) -> None:
        self.add(self._new_id(), prompt, 1)
        while self.has_work():
            self.step()

    def start(self, prompts: list[list[int]]) -> None:
        self._held = [self._new_id() for _ in prompts]
        for request_id, prompt in zip(self._held, prompts, strict=True):
            self.add(request_id, prompt, 512)
        waiting = set(self._held)
        while waiting:
            waiting.difference_update(self.step())

    def decode(self, steps: int) -> None:
        for _ in range(steps):
            answered = self.step()
            assert len(answered) == len(self._held), "a step left out a request"

    def keep(self, count: int) -> None:
        self.abort(self._held[count:])
        del self._held[count:]
        if not count:
            while self.has_work():
                self.step()

    def first_tokens(self, prompts: list[list[int]], max_tokens: int) -> list[tuple[float, float]]:
        start_cpu, start_wall = time.process_time(), time.perf_counter()
        ids = [self._new_id() for _ in prompts]
        for request_id, prompt in zip(ids, prompts, strict=True):
            self.add(request_id, prompt, max_tokens)
        first: dict[str, tuple[float, float]] = {}
        while self.has_work():
            for request_id in self.step():
                first.setdefault(request_id, (time.process_time() - start_cpu, time.perf_counter() - start_wall))
        return [first[request_id] for request_id in ids]

    def _new_id(self) -> str:
        self._count += 1
        return f"bench-{self._count}"
