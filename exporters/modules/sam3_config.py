"""Every number of a SAM3 image model: what its tensors and its config.json decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Of the official code (sam3/model_builder.py), in every norm of the model. transformers takes 1e-6 for the picture.
NORM_EPS = 1e-5
# Stands for minus infinity in attention: its exponential is 0, and it fits half precision.
MASKED = -1e4


@dataclass(frozen=True)
class Sam3VisionConfig:
    """The picture's transformer. side: of the learned position table; window: in patches; global_blocks: the others."""

    dim: int
    depth: int
    heads: int
    ffn: int
    patch: int
    side: int
    window: int
    global_blocks: tuple[int, ...]
    rope_theta: float = 10000.0


@dataclass(frozen=True)
class Sam3TextConfig:
    """The prompt's transformer. context: tokens of a prompt, padding included."""

    dim: int
    depth: int
    heads: int
    ffn: int
    context: int
    vocabulary: int


@dataclass(frozen=True)
class Sam3PointConfig:
    """The tracker's answer to points. inner: width of all heads where tokens and pixels attend to each other.

    masks: one for several points and some for a single one. slots: points that one prompt can hold, a box being two; a
    choice of the export, not of the weights.
    """

    dim: int
    heads: int
    inner: int
    depth: int
    ffn: int
    masks: int
    iou_hidden: int
    slots: int = 8


@dataclass(frozen=True)
class Sam3Config:
    """dim and heads: of everything after the two encoders. *_ffn: inner widths. grid: patches on a side of the picture.

    box_slots: boxes that one prompt can hold; a choice of the export, not of the weights. point_prompts: None where the
    checkpoint is without the tracker.
    """

    vision: Sam3VisionConfig
    text: Sam3TextConfig
    dim: int
    heads: int
    queries: int
    grid: int
    roi: int
    geometry_depth: int
    geometry_ffn: int
    encoder_depth: int
    encoder_ffn: int
    decoder_depth: int
    decoder_ffn: int
    scoring_ffn: int
    box_slots: int = 8
    point_prompts: Sam3PointConfig | None = None

    @property
    def size(self) -> int:
        """Pixels on a side of the picture."""
        return self.grid * self.vision.patch

    def to_mapping(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Sam3Config:
        """Pick the fields of this class out of a `ModelSpec.config`."""
        values = {name: config[name] for name in cls.__dataclass_fields__}
        vision = Sam3VisionConfig(**{**values["vision"], "global_blocks": tuple(values["vision"]["global_blocks"])})
        points = values["point_prompts"]
        parts = {
            "vision": vision,
            "text": Sam3TextConfig(**values["text"]),
            "point_prompts": None if points is None else Sam3PointConfig(**points),
        }
        return cls(**{**values, **parts})
