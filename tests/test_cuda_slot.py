"""Batches on a GPU without one: the results of the CPU, an order for every access, and no wait that orders nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from vtk.cuda_slot import CudaSlot, Streams
from vtk.engines.base import Array, TensorSpec
from vtk.engines.fake import FakeEngine
from vtk.errors import ImageError
from vtk.kernels.host_device import HostDevice
from vtk.kernels.resize_normalize.reference import resize_normalize
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe
from vtk.slots import EngineSlot, Row

SIZE_HW = (5, 6)
SIZES = (1, 4)
ROWS = 4
RECIPE = Recipe(SIZE_HW, "letterbox", "pil_bicubic", IMAGENET_MEAN, IMAGENET_STD, pad_value=7)
Pictures = list[np.ndarray[Any, np.dtype[np.uint8]]]


class MeanEngine:
    """A model of two outputs, as work on the current stream."""

    def __init__(self, batch: int) -> None:
        self.inputs = (TensorSpec("images", (batch, 3, *SIZE_HW), "float32"),)
        self.outputs = (TensorSpec("mean", (batch, 3), "float32"), TensorSpec("top", (batch, 3, 5), "float32"))

    def enqueue(self, tensors: Mapping[str, torch.Tensor]) -> None:
        assert tensors["images"].shape == self.inputs[0].shape
        tensors["mean"].copy_(tensors["images"].mean((2, 3)))
        tensors["top"].copy_(tensors["images"].amax(3))


def on_cpu(images: np.ndarray[Any, np.dtype[np.float32]]) -> dict[str, Array]:
    mean = torch.from_numpy(images).mean((2, 3)).numpy()
    return {"mean": mean, "top": images.max(3)}


def cpu_slot() -> EngineSlot:
    return EngineSlot(RECIPE, {batch: FakeEngine(on_cpu, batch=batch, size_hw=SIZE_HW) for batch in SIZES}, ROWS)


def gpu_slots(device: Any, count: int) -> list[CudaSlot]:
    streams = Streams.on(device)
    engines = {batch: MeanEngine(batch) for batch in SIZES}
    make = {"device": device, "streams": streams, "resize": resize_normalize}
    return [CudaSlot(RECIPE, engines, ROWS, **make) for _ in range(count)]


def batches(seed: int, count: int) -> list[Pictures]:
    """Full batches and tails of pictures of all sizes."""
    rng = np.random.default_rng(seed)
    shapes = [rng.integers(1, 24, (int(rng.integers(1, ROWS + 1)), 2)) for _ in range(count)]
    return [[rng.integers(0, 256, (height, width, 3), np.uint8) for height, width in shape] for shape in shapes]


def overlapped(slots: list[CudaSlot], work: list[Pictures]) -> Iterator[list[Row]]:
    """The results of each batch, taken when its slot is wanted again: all slots are under way at the same time."""
    under_way: dict[int, Any] = {}
    for number, pictures in enumerate(work):
        index = number % len(slots)
        if index in under_way:
            yield slots[index].collect(*under_way.pop(index))
        for row, picture in enumerate(pictures):
            slots[index].place(row, picture)
        under_way[index] = slots[index].launch(range(len(pictures))), len(pictures)
    for index, launched in sorted(under_way.items(), key=lambda item: (item[0] - len(work)) % len(slots)):
        yield slots[index].collect(*launched)


def read(rows: list[Row]) -> None:
    """As a result is read, but so that the recording device sees it."""
    for array in rows[0].values():
        torch.from_numpy(array).clone()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_are_those_of_the_cpu_and_every_access_is_ordered(recording_device: Any, count: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    work = batches(seed, 7)
    reference = cpu_slot()
    with recording_device() as device:
        found = [
            [{k: v.copy() for k, v in row.items()} for row in rows]
            for rows in overlapped(gpu_slots(device, count), work)
        ]
    assert device.races == []
    for pictures, rows in zip(work, found, strict=True):
        for row, picture in enumerate(pictures):
            reference.place(row, picture)
        for ours, theirs in zip(rows, reference.infer(range(len(pictures))), strict=True):
            np.testing.assert_array_equal(ours["mean"], theirs["mean"])
            np.testing.assert_array_equal(ours["top"], theirs["top"])


def test_no_wait_can_be_left_out(recording_device: Any) -> None:
    """One host wait and two between streams per batch, one host wait per slot at the start; none of them is idle."""
    work = batches(3, 4)
    with recording_device() as device:
        for rows in overlapped(gpu_slots(device, 1), work):
            read(rows)
    assert device.races == []
    assert device.num_waits == 1 + 3 * len(work)
    for ignored in range(device.num_waits):
        with recording_device(ignored) as careless:
            for rows in overlapped(gpu_slots(careless, 1), work):
                read(rows)
        assert careless.races, f"wait {ignored} of {device.num_waits} orders nothing"


def test_no_wait_can_be_left_out_while_batches_overlap(recording_device: Any) -> None:
    """Those of each batch; the second slot's start also covers that of the first."""
    work = batches(4, 6)
    for ignored in range(2, 2 + 3 * len(work)):
        with recording_device(ignored) as careless:
            for rows in overlapped(gpu_slots(careless, 2), work):
                read(rows)
        assert careless.races, f"wait {ignored} orders nothing"


def test_rows_that_were_never_filled_are_left_out() -> None:
    (slot,), reference = gpu_slots(HostDevice(), 1), cpu_slot()
    (pictures,) = ([picture for group in batches(5, 4) for picture in group][:4],)
    for row, picture in enumerate(pictures):
        assert slot.place(row, picture) == reference.place(row, picture)
    for rows in ([0, 1, 2, 3], [1, 3], [2]):
        for ours, theirs in zip(slot.infer(rows), reference.infer(rows), strict=True):
            np.testing.assert_array_equal(ours["mean"], theirs["mean"])


def test_a_strip_is_refused_before_anything_is_copied() -> None:
    recipe = Recipe((8, 8), "center_crop")
    streams, device = Streams.on(HostDevice()), HostDevice()
    engine = MeanEngine(1)
    engine.inputs = (TensorSpec("images", (1, 3, 8, 8), "float32"),)
    engine.outputs = (TensorSpec("mean", (1, 3), "float32"), TensorSpec("top", (1, 3, 8), "float32"))
    slot = CudaSlot(recipe, {1: engine}, 1, device=device, streams=streams, resize=resize_normalize)
    with pytest.raises(ImageError, match="center crop"):
        slot.place(0, np.zeros((1, 30_000_000, 3), np.uint8))
