"""What a pipeline is given: a model that infers in slots and makes results, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from vtk.engines.base import Array
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Result
from vtk.preprocess.decode import DecodeOptions
from vtk.preprocess.geometry import Geometry
from vtk.slots import Slot


class Finisher(Protocol):
    """What makes a result of raw outputs; called from several threads."""

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Result: ...


class Model(Finisher, Protocol):
    """What the pipeline needs of a predictor. lanes: how many slots may infer at the same time."""

    lanes: int

    def new_slot(self, rows: int) -> Slot: ...


@runtime_checkable
class AskedByPicture(Protocol):
    """A model that is asked something else of each picture."""

    def for_picture(self, file_name: str) -> Finisher: ...


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """batch: pictures per slot. workers: threads that load, and as many that finish. max_errors: failures to accept,
    None for any number.
    """

    decode: DecodeOptions
    post: PostRecipe
    class_filter: frozenset[int] | None = None
    batch: int
    workers: int
    max_errors: int | None = None
