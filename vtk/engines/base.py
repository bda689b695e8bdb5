"""The small protocol behind which every runtime sits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of an engine: static shape, NumPy dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Engine(Protocol):
    """A built artifact, open on a device. One owner at a time; `infer` is not reentrant.

    `backend` is the registry name (ort, openvino, ...); `device` is what really runs the graph, asked from the library
    after opening, never what was requested.
    """

    backend: str
    device: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once. Feeds must match `inputs` exactly; returns fresh arrays keyed by output name."""
        ...

    def share(self) -> Engine:
        """Another handle on the same loaded graph, which may infer while this one does."""
        ...

    def close(self) -> None:
        """Free the device memory; the engine is unusable afterwards."""
        ...
