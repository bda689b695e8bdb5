"""The host in the place of a GPU: all work is done when it is queued."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vtk.kernels.device import Event, T


class HostEvent:
    """Everything before it is done already."""

    def synchronize(self) -> None:
        pass


class HostStream:
    """`Stream` whose work is done when it is queued."""

    def run(self, work: Callable[[], T]) -> T:
        return work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def record(self) -> Event:
        return HostEvent()

    def wait(self, event: Event) -> None:
        pass


class HostDevice:
    """`Device` for kernels that run in Triton's interpreter."""

    torch_device = torch.device("cpu")

    def new_stream(self) -> HostStream:
        return HostStream()

    def record(self) -> Event:
        return HostEvent()

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)
