"""A promptable model with its prompts set: to a folder job, a model like all others whose classes are the prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.preprocess.apply import Preprocessed
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.segmenting.predictor import EmbeddedPicture, SegmentPredictor
from vtk.segmenting.prompts import Prompt, labels_of


class PromptedModel:
    """Satisfies `vtk.run.OpenModel`: `infer` encodes pictures, `finish` asks the prompts of one of them.

    The labels of `bundle` are the prompts. The predictor belongs to the caller. Raises UsageError without prompts.
    """

    def __init__(self, predictor: SegmentPredictor, prompts: Sequence[Prompt]) -> None:
        if not prompts:
            raise UsageError("This model finds what it is asked for, and was asked for nothing.")
        self.predictor = predictor
        self.prompts = tuple(prompts)
        manifest = replace(predictor.bundle.manifest, labels=labels_of(prompts))
        self.bundle = Bundle(predictor.bundle.root, manifest)
        self.batch_sizes = predictor.batch_sizes
        self.backend = predictor.backend
        self.device = predictor.device

    def prepare(self, picture: RGBImage) -> Preprocessed:
        """The network input of a decoded picture."""
        return self.predictor.images.prepare(picture)

    def infer(self, tensors: Sequence[npt.NDArray[np.float32]]) -> list[dict[str, Array]]:
        """Features of each picture; in a job each comes once, so that none is remembered."""
        return self.predictor.images.infer(tensors)

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Detections:
        """What the prompts find in the picture of these features. Raises UsageError for a class filter."""
        if class_filter is not None:
            raise UsageError("A class filter was given, but this model finds what it is prompted for.")
        return self.predictor.segment(EmbeddedPicture(dict(row), geometry), self.prompts, post)
