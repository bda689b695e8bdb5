"""A batch of pictures to the network's input: one launch on the GPU beside Pillow on the CPU, and what is hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from bench import Bench, Row, attempt, run_part

from vtk.kernels.resize_normalize.cuda import resize_normalize
from vtk.kernels.resize_normalize.plan import Placement, ResizePlan, plan_resize
from vtk.preprocess.apply import preprocess
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe
from vtk.preprocess.resize import RGBImage

WHAT = "resize_normalize"


@dataclass(frozen=True, eq=False)
class PictureBatch:
    """Pictures on the host, packed in memory that a copy does not wait for, and what the kernel reads and fills."""

    recipe: Recipe
    pictures: tuple[RGBImage, ...]
    packed: torch.Tensor
    pixels: torch.Tensor
    plan: ResizePlan
    out: torch.Tensor

    def upload(self) -> None:
        self.pixels.copy_(self.packed, non_blocking=True)

    def resize(self) -> None:
        resize_normalize(self.pixels, self.plan, self.out, self.recipe.mean, self.recipe.std)

    def cpu(self) -> torch.Tensor:
        return torch.from_numpy(np.stack([preprocess(picture, self.recipe).tensor for picture in self.pictures]))


def make_batch(bench: Bench) -> PictureBatch:
    """Eight pictures of 1,920 x 1,080 to 640 x 640, bilinear."""
    count, source_hw, size_hw = bench.pick((8, (1080, 1920), (640, 640)), (2, (5, 7), (4, 4)))
    recipe = Recipe(size_hw, "stretch", "pil_bilinear", IMAGENET_MEAN, IMAGENET_STD)
    rng = np.random.default_rng()
    pictures = tuple(rng.integers(0, 256, (*source_hw, 3), dtype=np.uint8) for _ in range(count))
    geometry = geometry_for(recipe, source_hw)
    starts = [index * pictures[0].size for index in range(count)]
    placements = [Placement(start, source_hw, geometry.resized_hw, geometry.offset_xy) for start in starts]
    flat = torch.from_numpy(np.concatenate([picture.ravel() for picture in pictures]))
    packed = bench.runner_device().pinned(*flat.shape, dtype=torch.uint8).copy_(flat)
    plan = plan_resize(placements, size_hw, "pil_bilinear").to(bench.device)
    out = torch.empty(count, 3, *size_hw, device=bench.device)
    return PictureBatch(recipe, pictures, packed, flat.to(bench.device), plan, out)


def on_the_gpu(bench: Bench, batch: PictureBatch) -> Row:
    seconds = bench.clock.seconds(batch.resize)
    same = torch.equal(batch.out.cpu(), batch.cpu())
    moved = batch.pixels.nbytes + batch.out.nbytes
    note = "bit for bit Pillow's pixels" if same else ""
    error = "" if same else "not the pixels of Pillow"
    share = bench.ceilings.floor(moved, 0) / seconds
    return Row(f"{WHAT} of {len(batch.pictures)}", seconds * 1e6, "us", share, note, error)


def on_the_cpu(bench: Bench, batch: PictureBatch) -> Row:
    start = bench.now()
    batch.cpu()
    seconds = bench.now() - start
    return Row(f"Pillow on one core, of {len(batch.pictures)}", seconds * 1e6, "us")


def torchvision(bench: Bench, batch: PictureBatch) -> Row:
    """Its antialiased resize of a dense batch on the device, with the normalization behind it: not Pillow's pixels."""
    name = f"torchvision resize + normalize of {len(batch.pictures)}"
    if find_spec("torchvision") is None:
        return Row(name, note="not installed")
    functional = import_module("torchvision.transforms.v2.functional")
    dense = torch.from_numpy(np.stack(batch.pictures)).permute(0, 3, 1, 2).contiguous().to(bench.device)

    def work() -> None:
        resized = functional.resize(dense, list(batch.recipe.size_hw), antialias=True)
        functional.normalize(resized.float() / 255, IMAGENET_MEAN, IMAGENET_STD)

    return Row(name, bench.clock.seconds(work) * 1e6, "us")


def overlap(bench: Bench, batch: PictureBatch) -> Row:
    """Copy in and resizing on one stream, products that take about as long on another: in turn, and at once."""
    size = bench.pick(4096, 8)
    a = torch.randn(size, size, device=bench.device).to(bench.pick(torch.bfloat16, torch.float32))

    def prepare() -> None:
        batch.upload()
        batch.resize()

    prepared = bench.clock.seconds(prepare)
    product = bench.clock.seconds(lambda: a @ a)
    count = max(1, round(prepared / product)) if not bench.dry else 1

    def infer() -> None:
        for _ in range(count):
            torch.mm(a, a)

    inferred = bench.clock.seconds(infer)
    together = bench.clock.seconds(at_once(bench, prepare, infer))
    hidden = (prepared + inferred - together) / min(prepared, inferred)
    note = f"{prepared * 1e6:.0f} us prepare, {inferred * 1e6:.0f} us compute, {together * 1e6:.0f} us at once"
    return Row("preparation hidden behind compute", 100 * hidden, "%", None, note)


def at_once(bench: Bench, *works: Callable[[], None]) -> Callable[[], None]:
    """Each on a stream of its own, between what the current stream did before and does after."""
    device = bench.runner_device()
    streams = [device.new_stream() for _ in works]

    def run() -> None:
        begun = device.record()
        for stream, work in zip(streams, works, strict=True):
            stream.wait(begun)
            stream.run(work)
        for stream in streams:
            bench.wait(stream.record())

    return run


def measure(bench: Bench) -> Iterator[Row]:
    batch = make_batch(bench)
    for part in (on_the_gpu, on_the_cpu, torchvision, overlap):
        yield from attempt(part.__name__.replace("_", " "), partial(part, bench, batch))


if __name__ == "__main__":
    run_part(measure)
