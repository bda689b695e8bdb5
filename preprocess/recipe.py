"""The one description of how a picture becomes a tensor. It is written into the bundle and read by every verb."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from vtk.errors import BundleError

ResizeMode = Literal["stretch", "letterbox", "center_crop"]
Interpolation = Literal["pil_bilinear", "pil_bicubic", "cv2_linear"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """Decoded RGB uint8 (H, W, 3) to float32 (3, *size_hw).

    `pil_*` is Pillow's antialiased resampling on uint8, `cv2_linear` is OpenCV's INTER_LINEAR on uint8; both round to
    uint8 before the arithmetic `(x / 255 - mean) / std`. `crop_fraction` is timm's crop_pct: in `center_crop` the
    shorter side is resized to `floor(size / crop_fraction)` and the center is cut out. `pad_value` fills the borders
    of `letterbox`. `scale_up=False` forbids enlarging in `letterbox`.
    """

    size_hw: tuple[int, int]
    resize: ResizeMode = "stretch"
    interpolation: Interpolation = "pil_bilinear"
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    pad_value: int = 114
    crop_fraction: float = 1.0
    scale_up: bool = True

    def __post_init__(self) -> None:
        if len(self.size_hw) != 2 or any(type(side) is not int or side < 1 for side in self.size_hw):
            raise ValueError(f"size_hw must be two positive integers, got {self.size_hw}")
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ValueError(f"mean and std need one value per channel, got {self.mean} and {self.std}")
        if self.resize not in get_args(ResizeMode) or self.interpolation not in get_args(Interpolation):
            raise ValueError(f"unknown resize {self.resize!r} or interpolation {self.interpolation!r}")
        if not all(isinstance(value, (int, float)) for value in (*self.mean, *self.std, self.crop_fraction)):
            raise ValueError(f"mean, std and crop_fraction must be numbers, got {self.mean}, {self.std}")
        if type(self.pad_value) is not int or type(self.scale_up) is not bool:
            raise ValueError(f"pad_value must be an integer and scale_up a bool, got {self.pad_value}, {self.scale_up}")
        if not 0 < self.crop_fraction <= 1 or not 0 <= self.pad_value <= 255 or min(self.std) <= 0:
            raise ValueError("crop_fraction must be in (0, 1], pad_value in 0..255, std positive")

    def with_size(self, size_hw: tuple[int, int]) -> Recipe:
        return replace(self, size_hw=size_hw)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Recipe:
        """The inverse of `to_json`. Nothing is filled in: a missing `mean` would silently mean another one."""
        try:
            if missing := {field.name for field in fields(cls)} - data.keys():
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            values: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
            }
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise BundleError(f"The preprocess recipe of this bundle is not usable: {error}.") from error

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal recipes have equal digests."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()
