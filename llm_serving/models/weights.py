"""The tensors of one model under its own names, checked against its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vtk.errors import WeightsMismatchError
from vtk.kernels.weights import StoredWeight
from vtk.llm_serving.models.config import ModelConfig


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """Names are those of ModelConfig.tensor_shapes.

    matrices: as stored, outputs first, views of the mapped file. vectors: norms and biases, float32 copies, so that
    they do not keep the file mapped once the matrices are packed. forget_pages: takes what was read of the file so far
    out of this process's memory; it is read again where it is needed again.
    """

    matrices: Mapping[str, StoredWeight]
    vectors: Mapping[str, npt.NDArray[np.float32]]
    forget_pages: Callable[[], None] = lambda: None

    def check(self, config: ModelConfig, source: str) -> None:
        """Raise WeightsMismatchError unless exactly the tensors of the configuration are there."""
        expected = config.tensor_shapes()
        found: dict[str, tuple[int, ...]] = {
            name: (weight.out_features, weight.in_features) for name, weight in self.matrices.items()
        }
        found |= {name: tuple(vector.shape) for name, vector in self.vectors.items()}
        if expected == found:
            return
        missing = sorted(expected.keys() - found.keys())
        extra = sorted(found.keys() - expected.keys())
        shapes = [n for n in expected if n in found and found[n] != expected[n]]
        parts = [f"{len(missing)} are missing (such as {missing[0]})"] if missing else []
        parts += [f"{len(extra)} are unknown (such as {extra[0]})"] if extra else []
        parts += [f"{shapes[0]} is {found[shapes[0]]}, not {expected[shapes[0]]}"] if shapes else []
        raise WeightsMismatchError(f"{source} does not fill a {config.architecture} model: {'; '.join(parts)}.")

    def dequantized(self) -> ModelWeights:
        """The same values as float32 matrices, none of them in the file any more."""
        matrices = {}
        for name, weight in self.matrices.items():
            values = weight.dequantize()
            matrices[name] = StoredWeight("f32", values.copy() if np.shares_memory(values, weight.data) else values)
        return ModelWeights(matrices, self.vectors)
