"""What runners of models ask of a device: streams, events, captured work, pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

T = TypeVar("T")


class Event(Protocol):
    """A point in the work of one stream."""

    def synchronize(self) -> None:
        """Let the host wait until everything before it is done."""
        ...


class Stream(Protocol):
    """Work that runs in order, and in no order with the host's or another stream's unless one waits."""

    def run(self, work: Callable[[], T]) -> T:
        """Call `work`, whose operations on device tensors are queued here; returns before they are done."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` would queue, on the same addresses; the result queues all of it again.

        `work` has run once before, so that kernels are compiled, and reads no device value on the host.
        """
        ...

    def record(self) -> Event:
        """An event after everything queued so far."""
        ...

    def wait(self, event: Event) -> None:
        """Let what is queued from now on wait for an event of another stream."""
        ...


class Device(Protocol):
    """One GPU (`vtk.kernels.cuda_device`), the host in its place (`vtk.kernels.host_device`), and in the tests a twin
    that records who touches what.
    """

    torch_device: torch.device

    def new_stream(self) -> Stream: ...

    def record(self) -> Event:
        """An event after everything that was queued outside of any stream, such as the loading of weights."""
        ...

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device copies from and to by itself."""
        ...
