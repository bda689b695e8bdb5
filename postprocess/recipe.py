"""The one description of how raw outputs become results. It is written into the bundle and read by every verb."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from vtk.errors import BundleError

PostKind = Literal["detr", "yolo", "embed", "classify", "segment"]


@dataclass(frozen=True)
class PostRecipe:
    """kind detr: sigmoid, flat top-k over (query x class), no NMS. yolo: class-aware NMS. embed, classify: as named.
    segment: score of a query times the presence of what was asked for, and a mask for each.

    `score_threshold` keeps scores strictly above it; `iou_threshold` is used by yolo only; `max_detections` is the
    top-k (DETR), the cap after NMS (YOLO) or that of each prompt (segment); `top_k` is used by classify.
    """

    kind: PostKind
    score_threshold: float = 0.3
    iou_threshold: float = 0.7
    max_detections: int = 300
    top_k: int = 5

    def __post_init__(self) -> None:
        if self.kind not in get_args(PostKind):
            raise ValueError(f"unknown kind {self.kind!r}")
        if not 0 <= self.score_threshold <= 1 or not 0 <= self.iou_threshold <= 1:
            raise ValueError("thresholds must be in 0..1")
        if type(self.max_detections) is not int or type(self.top_k) is not int:
            raise ValueError("max_detections and top_k must be integers")
        if self.max_detections < 1 or self.top_k < 1:
            raise ValueError("max_detections and top_k must be at least 1")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PostRecipe:
        """The inverse of `to_json`; nothing is filled in."""
        try:
            if missing := {field.name for field in fields(cls)} - data.keys():
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            return cls(**data)
        except (TypeError, ValueError) as error:
            raise BundleError(f"The postprocess recipe of this bundle is not usable: {error}.") from error
