"""Devices of the CUDA runner for comparisons: a GPU without graphs, and the host in the place of a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vtk.llm_serving.runner.cuda_device import CudaDevice, CudaStream
from vtk.llm_serving.runner.device import Event, T


class EagerStream(CudaStream):
    """Launches the work again where a graph would be replayed: the same padded step, kernel by kernel."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return lambda: self.run(work)


class EagerDevice(CudaDevice):
    """One GPU without graphs."""

    def new_stream(self) -> EagerStream:
        return EagerStream(self.torch_device)


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
