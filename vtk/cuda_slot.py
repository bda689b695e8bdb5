"""A batch on a GPU: pixels become inputs on one stream, the engine runs on another, results return on a third.

Events alone order the streams; the host waits once per batch, for its results. Not yet run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol, cast, runtime_checkable

import numpy as np
import torch

from vtk.batching import plan_batches
from vtk.engines.base import Engine, TensorSpec
from vtk.kernels.cuda_device import CudaDevice
from vtk.kernels.device import Device, Event, Stream
from vtk.kernels.resize_normalize.plan import Placement, ResizePlan, plan_resize
from vtk.kernels.resize_normalize.tables import Filter
from vtk.preprocess.apply import check_placement
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.recipe import Recipe
from vtk.preprocess.resize import RGBImage
from vtk.slots import Row

Tensors = dict[str, torch.Tensor]


@runtime_checkable
class StreamEngine(Protocol):
    """An engine that runs where its tensors lie."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def enqueue(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Queue one run on torch's current stream, over device tensors for all inputs and outputs; wait for nothing."""
        ...


class Resize(Protocol):
    """`vtk.kernels.resize_normalize.cuda.resize_normalize`, or its reference."""

    def __call__(
        self,
        pixels: torch.Tensor,
        plan: ResizePlan,
        out: torch.Tensor,
        mean: tuple[float, float, float],
        std: tuple[float, float, float],
        pad_value: int = 114,
    ) -> torch.Tensor: ...


@dataclass(frozen=True)
class Streams:
    """Those that all slots of a ring share: one batch is copied while the one before it is inferred."""

    upload: Stream
    compute: Stream
    download: Stream

    @classmethod
    def on(cls, device: Device) -> Streams:
        return cls(device.new_stream(), device.new_stream(), device.new_stream())


class CudaSlot:
    """Staging buffers, inputs, outputs and captured graphs of one batch."""

    def __init__(
        self,
        recipe: Recipe,
        engines: Mapping[int, StreamEngine],
        rows: int,
        *,
        device: Device,
        streams: Streams,
        resize: Resize,
    ) -> None:
        """`engines` by batch size, used by this slot alone. All are run and captured: make slots one by one."""
        self._recipe, self._device, self._streams, self._resize = recipe, device, streams, resize
        self._sizes = tuple(engines)
        calls = {call for count in range(1, rows + 1) for call in self._calls(count)}
        capacity = max(start + batch for start, batch in calls)
        first = engines[self._sizes[0]]
        self._images = torch.empty((capacity, 3, *recipe.size_hw), device=device.torch_device)
        self._outputs = {spec.name: _rows_of(spec, capacity, device.torch_device) for spec in first.outputs}
        self._results = {name: device.pinned(*array.shape, dtype=array.dtype) for name, array in self._outputs.items()}
        self._pixels = torch.empty(0, dtype=torch.uint8, device=device.torch_device)
        self._staged = [device.pinned(0, dtype=torch.uint8) for _ in range(rows)]
        self._geometries: dict[int, Geometry] = {}
        self._graphs = {(start, batch): self._capture(engines[batch], start) for start, batch in sorted(calls)}
        streams.compute.record().synchronize()

    def place(self, row: int, picture: RGBImage) -> Geometry:
        """Keep the pixels in pinned memory; the network input is made of them on the GPU."""
        geometry = check_placement(picture, self._recipe)
        if self._staged[row].numel() < picture.size:
            self._staged[row] = self._device.pinned(picture.size, dtype=torch.uint8)
        self._staged[row][: picture.size].copy_(torch.from_numpy(np.ascontiguousarray(picture)).view(-1))
        self._geometries[row] = geometry
        return geometry

    def infer(self, rows: Sequence[int]) -> list[Row]:
        return self.collect(self.launch(rows), len(rows))

    def launch(self, rows: Sequence[int]) -> Event:
        """Queue everything from the copy up to the copy back; the event is of its end."""
        upload, compute, download = self._streams.upload, self._streams.compute, self._streams.download
        plan, sources = self._plan(rows)
        if self._pixels.numel() < plan.num_bytes:
            self._pixels = torch.empty(plan.num_bytes, dtype=torch.uint8, device=self._device.torch_device)
        upload.run(lambda: self._fill(sources, plan))
        compute.wait(upload.record())
        for call in self._calls(len(rows)):
            self._graphs[call]()
        download.wait(compute.record())
        download.run(lambda: self._return(len(rows)))
        return download.record()

    def collect(self, done: Event, count: int) -> list[Row]:
        """The results of a batch that was launched, each in the slot's memory."""
        done.synchronize()
        arrays = {name: tensor.numpy() for name, tensor in self._results.items()}
        return [{name: array[row] for name, array in arrays.items()} for row in range(count)]

    def _calls(self, count: int) -> list[tuple[int, int]]:
        """First row and batch size of each run of an engine."""
        calls, start = [], 0
        for batch in plan_batches(count, self._sizes):
            calls.append((start, batch))
            start += batch
        return calls

    def _plan(self, rows: Sequence[int]) -> tuple[ResizePlan, list[torch.Tensor]]:
        placements, sources, start = [], [], 0
        for row in rows:
            place = self._geometries[row]
            placements.append(Placement(start, place.source_hw, place.resized_hw, place.offset_xy))
            size = 3 * place.source_hw[0] * place.source_hw[1]
            sources.append(self._staged[row][:size])
            start += size
        recipe = self._recipe
        plan = plan_resize(placements, recipe.size_hw, cast(Filter, recipe.interpolation))
        return ResizePlan(plan.size_hw, plan.num_bytes, self._pin(plan.headers), self._pin(plan.tables)), sources

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._device.pinned(*tensor.shape, dtype=tensor.dtype).copy_(tensor)

    def _fill(self, sources: Sequence[torch.Tensor], plan: ResizePlan) -> None:
        start = 0
        for source in sources:
            self._pixels[start : start + len(source)].copy_(source, non_blocking=True)
            start += len(source)
        recipe, count = self._recipe, len(sources)
        self._resize(
            self._pixels,
            plan.to(self._device.torch_device),
            self._images[:count],
            recipe.mean,
            recipe.std,
            recipe.pad_value,
        )
        self._images[count:].zero_()

    def _return(self, count: int) -> None:
        for name, array in self._outputs.items():
            self._results[name][:count].copy_(array[:count], non_blocking=True)

    def _capture(self, engine: StreamEngine, start: int) -> Callable[[], None]:
        batch = engine.inputs[0].shape[0]
        tensors = {name: array[start : start + batch] for name, array in self._outputs.items()}
        tensors[engine.inputs[0].name] = self._images[start : start + batch]
        compute = self._streams.compute
        compute.run(lambda: engine.enqueue(tensors))
        return compute.capture(lambda: engine.enqueue(tensors))


@cache
def _gpu() -> tuple[Device, Streams]:
    device = CudaDevice(torch.device("cuda", torch.cuda.current_device()), priority=0)
    return device, Streams.on(device)


def gpu_slot(recipe: Recipe, engines: Mapping[int, Engine], rows: int) -> CudaSlot:
    """A slot on the current GPU; all of them share its three streams. Needs Triton."""
    from vtk.kernels.resize_normalize.cuda import resize_normalize

    device, streams = _gpu()
    chosen = {batch: engine for batch, engine in engines.items() if isinstance(engine, StreamEngine)}
    assert chosen.keys() == engines.keys()
    return CudaSlot(recipe, chosen, rows, device=device, streams=streams, resize=resize_normalize)


def _rows_of(spec: TensorSpec, rows: int, device: torch.device) -> torch.Tensor:
    return torch.empty((rows, *spec.shape[1:]), dtype=getattr(torch, spec.dtype), device=device)
