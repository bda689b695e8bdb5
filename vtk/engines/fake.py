"""A function as an engine, for tests of what sits on top of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from vtk.engines.base import Array, TensorSpec
from vtk.engines.feeds import check_feeds
from vtk.errors import BackendError

BatchFunction = Callable[[npt.NDArray[np.float32]], Mapping[str, Array]]


class FakeEngine:
    """Runs `function(images (N, 3, H, W) float32) -> outputs by name`; `calls` counts the runs."""

    backend = "fake"
    device = "cpu"

    def __init__(self, function: BatchFunction, *, batch: int, size_hw: tuple[int, int]) -> None:
        self._function = function
        self.inputs = (TensorSpec("images", (batch, 3, *size_hw), "float32"),)
        sample = function(np.zeros((batch, 3, *size_hw), np.float32))
        self.outputs = tuple(TensorSpec(name, array.shape, array.dtype.name) for name, array in sample.items())
        self.calls = 0
        self.closed = False

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self.closed:
            raise BackendError("The engine is closed.")
        check_feeds(feeds, self.inputs)
        self.calls += 1
        return dict(self._function(feeds["images"].astype(np.float32)))

    def share(self) -> FakeEngine:
        return self

    def close(self) -> None:
        self.closed = True
