"""The memory that carries one batch through the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.batching import plan_batches
from vtk.engines.base import Array, Engine
from vtk.preprocess.apply import preprocess_into
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.recipe import Recipe
from vtk.preprocess.resize import RGBImage

Row: TypeAlias = dict[str, Array]


class Slot(Protocol):
    """Holds one batch at a time: first `place` for each row, from any threads at once, then `infer`, then the next."""

    def place(self, row: int, picture: RGBImage) -> Geometry:
        """Turn RGB uint8 (h, w, 3) into the network input of that row. Raises what `preprocess_into` raises."""
        ...

    def infer(self, rows: Sequence[int]) -> list[Row]:
        """The raw outputs of these rows, one dictionary each, without batch dimension; valid until the next `place`."""
        ...


class EngineSlot:
    """Rows of one array that the engines read where they lie."""

    def __init__(self, recipe: Recipe, engines: Mapping[int, Engine], rows: int) -> None:
        """`engines` by batch size; they must not be used by anything that infers at the same time."""
        self._recipe = recipe
        self._engines = engines
        capacity = max(sum(plan_batches(count, tuple(engines))) for count in range(1, rows + 1))
        self._images = np.zeros((capacity, 3, *recipe.size_hw), np.float32)

    def place(self, row: int, picture: RGBImage) -> Geometry:
        return preprocess_into(picture, self._recipe, self._images[row])

    def infer(self, rows: Sequence[int]) -> list[Row]:
        """Full batches of the largest graph, then the cheapest that hold the rest; missing rows are zeros."""
        images, found = self._gathered(rows), list[Row]()
        for batch in plan_batches(len(rows), tuple(self._engines)):
            feed = images[len(found) : len(found) + batch]
            count = min(batch, len(rows) - len(found))
            feed[count:] = 0
            engine = self._engines[batch]
            outputs = engine.infer({engine.inputs[0].name: feed})
            found += [{name: array[row] for name, array in outputs.items()} for row in range(count)]
        return found

    def _gathered(self, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """The rows side by side, which without failures they already are."""
        if list(rows) == list(range(len(rows))):
            return self._images
        images = np.empty_like(self._images)
        images[: len(rows)] = self._images[list(rows)]
        return images


def open_slot(recipe: Recipe, engines: Mapping[int, Engine], rows: int) -> Slot:
    """On the GPU where engines run over its memory, and torch and Triton are there to fill it; else an `EngineSlot`."""
    over_gpu_memory = all(engine.device == "cuda" and hasattr(engine, "enqueue") for engine in engines.values())
    if over_gpu_memory and recipe.interpolation != "cv2_linear" and all(map(find_spec, ("torch", "triton"))):
        from vtk.cuda_slot import gpu_slot

        return gpu_slot(recipe, engines, rows)
    return EngineSlot(recipe, engines, rows)
