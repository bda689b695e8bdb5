"""Golden data of what takes points: objects pointed at, and the masks that the source model gave for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.engines.base import Array
from vtk.preprocess.geometry import Geometry
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.places import Box, Point


@dataclass(frozen=True)
class GoldenClicks:
    """Points on an object, for any picture. Places are shares of the picture."""

    points: tuple[Point, ...]
    labels: tuple[int, ...]
    box: Box | None

    @property
    def name(self) -> str:
        """For reports."""
        return f"{len(self.points)} points" + ("" if self.box is None else " and a box")

    def on(self, geometry: Geometry) -> Clicks:
        """The object in pixels of one picture."""
        height, width = geometry.source_hw
        points = tuple((x * width, y * height) for x, y in self.points)
        if self.box is None:
            return Clicks(points, self.labels)
        left, top, right, bottom = self.box
        return Clicks(points, self.labels, (left * width, top * height, right * width, bottom * height))


@dataclass(frozen=True, eq=False)
class GoldenMasks:
    """What the point decoder gave for one object. outputs: sampled. mask_bits: packed, a row for each candidate."""

    outputs: Mapping[str, Array]
    mask_bits: npt.NDArray[np.uint8]


def read_clicks(item: Mapping[str, Any]) -> GoldenClicks:
    """From its fields as JSON. Raises KeyError, TypeError and UsageError for what is none."""
    clicks = Clicks(item["points"], item["labels"], item["box"])
    return GoldenClicks(clicks.points, clicks.labels, clicks.box_xyxy)
