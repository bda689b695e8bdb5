"""Streams, graphs and pinned memory of one NVIDIA GPU. Not yet run on one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vtk.llm_serving.runner.device import Event, T

HIGH_PRIORITY = -1  # a decode step is short, and somebody waits for each


class CudaStream:
    """`Stream` over torch.cuda; the graphs captured on it share one memory pool, so only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY)  # type: ignore[no-untyped-call]
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
    """`Device` over torch.cuda."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    def new_stream(self) -> CudaStream:
        return CudaStream(self.torch_device)

    def record(self) -> Event:
        return _recorded(torch.cuda.current_stream(self.torch_device))

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
