"""What users get: one frozen value per picture. Every file format is derived from these, never the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.errors import MissingDependencyError

if TYPE_CHECKING:
    import supervision as sv

    from vtk.postprocess.masks import Masks

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Detections:
    """N boxes of one picture, by falling score.

    xyxy: (N, 4) float32, pixels of the displayed (EXIF-upright) picture, not clipped. scores: (N,) float32 in 0..1.
    class_ids: (N,) int64, index into the bundle's labels. resolution_wh: that picture's size in pixels.
    masks: one per box, in the same order and size, or None from a model that makes none.
    """

    xyxy: FloatArray
    scores: FloatArray
    class_ids: IntArray
    resolution_wh: tuple[int, int]
    masks: Masks | None = None

    def __post_init__(self) -> None:
        n = len(self.scores)
        if self.xyxy.shape != (n, 4) or self.class_ids.shape != (n,):
            raise ValueError(f"expected xyxy (N, 4) and class_ids (N,), got {self.xyxy.shape}, {self.class_ids.shape}")
        if self.masks is not None and (len(self.masks) != n or self.masks.resolution_wh != self.resolution_wh):
            raise ValueError(f"expected {n} masks of {self.resolution_wh}, got {self.masks}")

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, keep: npt.NDArray[np.bool_] | IntArray | slice) -> Detections:
        """The rows that `keep` (mask, indices or slice) names, in its order."""
        masks = None if self.masks is None else self.masks.select(np.arange(len(self))[keep])
        return Detections(self.xyxy[keep], self.scores[keep], self.class_ids[keep], self.resolution_wh, masks)

    def to_supervision(self, class_names: Sequence[str] | None = None) -> sv.Detections:
        """The same as `supervision.Detections`: boxes, scores, classes, and masks as one dense array (N, H, W).

        class_names: of the bundle's labels by index, to be found as `data["class_name"]`. Raises MissingDependencyError
        without supervision.
        """
        try:
            import supervision as sv
        except ImportError:
            raise MissingDependencyError("supervision", needed_for="to_supervision", extra="supervision") from None
        names = None if class_names is None else np.array([class_names[index] for index in self.class_ids], np.str_)
        return sv.Detections(
            xyxy=self.xyxy,
            mask=None if self.masks is None else self.masks.dense(),
            confidence=self.scores,
            class_id=self.class_ids,
            data={} if names is None else {"class_name": names},
            metadata={"resolution_wh": self.resolution_wh},
        )


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features of one picture.

    pooled: (D,) float32, the model's own summary vector (CLS token, or pooled map).
    patches: (h, w, D) float32 dense features in row-major grid order, or None where the model has none.
    """

    pooled: FloatArray
    patches: FloatArray | None
    resolution_wh: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Classification:
    """Class scores of one picture: class_ids (K,) int64 by falling score, scores (K,) float32 probabilities."""

    class_ids: IntArray
    scores: FloatArray
    resolution_wh: tuple[int, int]


Result: TypeAlias = Detections | Embeddings | Classification
