"""Streams, graphs and pinned memory of one NVIDIA GPU. Not yet run on one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vtk.kernels.device import Event, T

HIGH_PRIORITY = -1


class CudaStream:
    """`Stream` over torch.cuda; the graphs captured on it share one memory pool, so only one may run at a time."""

    def __init__(self, device: torch.device, priority: int) -> None:
        self._stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, work: Callable[[], T]) -> T:
        with torch.cuda.stream(self._stream):
            return work()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return lambda: self.run(graph.replay)

    def record(self) -> Event:
        return _recorded(self._stream)

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        self._stream.wait_event(event)


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class CudaDevice:
    """`Device` over torch.cuda. Streams are of high priority by default: a decode step is short and awaited."""

    def __init__(self, device: torch.device, *, priority: int = HIGH_PRIORITY) -> None:
        self.torch_device = device
        self._priority = priority

    def new_stream(self) -> CudaStream:
        return CudaStream(self.torch_device, self._priority)

    def record(self) -> Event:
        return _recorded(torch.cuda.current_stream(self.torch_device))

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
