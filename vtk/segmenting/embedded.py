"""What the encoders see in a picture and in a text, as the decoders take it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vtk.engines.base import Array, Engine
from vtk.predictor import Row

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry
    from vtk.preprocess.resize import RGBImage


@dataclass(frozen=True, eq=False)
class EmbeddedPicture:
    """What the image encoder sees in one picture: features by name, without batch dimension; and its geometry."""

    features: Row
    geometry: Geometry

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.features.values())

    def to_keep(self) -> EmbeddedPicture:
        """The same without the memory of others: a small part of a larger array would keep all of it alive."""
        return EmbeddedPicture({name: _owned(array) for name, array in self.features.items()}, self.geometry)

    def feeds(self, engine: Engine) -> dict[str, Array]:
        """What a decoder takes of it, with a batch dimension."""
        taken = {spec.name for spec in engine.inputs}
        return {name: array[None] for name, array in self.features.items() if name in taken}


@dataclass(frozen=True, eq=False)
class EmbeddedText:
    """A prompt's text as the decoder takes it, with its padding masked: (1, L, D) and (1, L)."""

    features: Array
    attention_mask: Array


def pixels_key(picture: RGBImage) -> bytes:
    """A digest of the pixels and the shape of a picture."""
    digest = hashlib.sha256(repr(picture.shape).encode())
    digest.update(np.ascontiguousarray(picture).data)
    return digest.digest()


def _owned(array: Array) -> Array:
    base = array.base
    return array.copy() if isinstance(base, np.ndarray) and base.nbytes > array.nbytes else array
