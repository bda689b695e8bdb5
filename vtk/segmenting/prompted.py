"""A promptable model with its prompts set: to a folder job, a model like all others whose classes are the prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from vtk.bundle import Bundle
from vtk.engines.base import Array
from vtk.errors import UsageError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import Geometry
from vtk.segmenting.embedded import EmbeddedPicture
from vtk.segmenting.job_prompts import Asked, JobPrompts
from vtk.segmenting.predictor import SegmentPredictor
from vtk.slots import Slot


class PromptedModel:
    """Satisfies `vtk.job_request.OpenModel`: slots encode pictures, `finish` asks the prompts of one of them.

    The labels of `bundle` are the prompts. The predictor belongs to the caller.
    """

    def __init__(self, predictor: SegmentPredictor, prompts: JobPrompts) -> None:
        """Raises UsageError for a prompt that does not fit the model."""
        for prompt in prompts.all:
            predictor.check(prompt)
        self.predictor = predictor
        self.prompts = prompts
        manifest = replace(predictor.bundle.manifest, labels=prompts.labels)
        self.bundle = Bundle(predictor.bundle.root, manifest)
        self.batch_sizes = predictor.batch_sizes
        self.lanes = predictor.images.lanes
        self.backend = predictor.backend
        self.device = predictor.device

    def new_slot(self, rows: int) -> Slot:
        """Memory for batches of pictures; in a job each comes once, so that its features are not remembered."""
        return self.predictor.images.new_slot(rows)

    def for_picture(self, file_name: str) -> PicturePrompts:
        """What finishes the picture of that name."""
        return PicturePrompts(self.predictor, self.prompts.of(file_name))

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Detections:
        """As for a picture without examples of its own."""
        return self.for_picture("").finish(row, geometry, class_filter=class_filter, post=post)


@dataclass(frozen=True, eq=False)
class PicturePrompts:
    """The prompts of one picture."""

    predictor: SegmentPredictor
    asked: Asked

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
        return self.predictor.segment(EmbeddedPicture(dict(row), geometry), self.asked, post)
