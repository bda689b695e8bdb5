"""One object that is pointed at, and how the point decoder takes that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vtk.errors import UsageError
from vtk.segmenting.places import ON, Box, Point, PointLabels, Points, box_of, labels_of_points, points_of

if TYPE_CHECKING:
    from vtk.preprocess.geometry import Geometry

UPPER_LEFT, LOWER_RIGHT, UNUSED = 2, 3, -10


@dataclass(frozen=True)
class Clicks:
    """Points on one object and beside it, a box around it, or both, in pixels of the upright picture.

    points: x, y. labels: one for each, 1 on the object and 0 beside it. box_xyxy: left, top, right, bottom. Lists and
    arrays are taken too, and kept as tuples. Raises UsageError for what says nothing of where the object is, and for
    numbers that are no place.
    """

    points: tuple[Point, ...] = ()
    labels: tuple[int, ...] = ()
    box_xyxy: Box | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", points_of(self.points))
        object.__setattr__(self, "labels", labels_of_points(self.labels))
        if self.box_xyxy is not None:
            object.__setattr__(self, "box_xyxy", box_of(self.box_xyxy))
        if len(self.points) != len(self.labels):
            raise UsageError(
                f"There are {len(self.points)} points and {len(self.labels)} labels.", hint="Give each point one."
            )
        if ON not in self.labels and self.box_xyxy is None:
            raise UsageError("An object needs a point on it (label 1), a box around it, or both.")

    @property
    def num_points(self) -> int:
        """A box counts as two."""
        return len(self.points) + (0 if self.box_xyxy is None else 2)


def clicks_of(points: Points, labels: PointLabels | None, box: Box | None) -> Clicks:
    """The object of these points, which are all on it unless labels say so. Raises UsageError as `Clicks`."""
    places = points_of(points)
    return Clicks(places, (ON,) * len(places) if labels is None else labels_of_points(labels), box)


@dataclass(frozen=True, eq=False)
class PointSlots:
    """What points at one object, as the decoder takes it.

    points: (1, P, 2) float32, x, y in 0..1 of the network input. labels: (1, P) int64, 1 on the object, 0 beside it, 2
    and 3 the corners of a box, -10 for a slot that is not used.
    """

    points: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def check_num_points(clicks: Clicks, count: int) -> None:
    """Raise UsageError for more than `count` points."""
    if clicks.num_points > count:
        raise UsageError(
            f"{clicks.num_points} points were given for one object, a box counting as two; this model takes up to "
            f"{count}."
        )


def point_slots(clicks: Clicks, geometry: Geometry, count: int) -> PointSlots:
    """Raises UsageError for more than `count` points and for a point or box outside of the picture."""
    check_num_points(clicks, count)
    places, labels = list(clicks.points), list(clicks.labels)
    if clicks.box_xyxy is not None:
        left, top, right, bottom = box_in_picture(clicks.box_xyxy, geometry)
        places, labels = [(left, top), (right, bottom), *places], [UPPER_LEFT, LOWER_RIGHT, *labels]
    xy = np.array(places, np.float64)
    height, width = geometry.source_hw
    outside = ((xy < 0) | (xy > (width, height))).any(axis=1)
    if outside.any():
        raise UsageError(
            f"The point {xy[outside][0].tolist()} lies outside of the picture of {width} x {height} pixels."
        )
    slots = PointSlots(np.zeros((1, count, 2), np.float32), np.full((1, count), UNUSED, np.int64))
    slots.points[0, : len(xy)] = geometry.points_to_input(xy) / geometry.input_hw[::-1]
    slots.labels[0, : len(xy)] = labels
    return slots


def box_in_picture(box: Box, geometry: Geometry) -> npt.NDArray[np.float64]:
    """The box, clipped to the picture. Raises UsageError where nothing of it is left."""
    height, width = geometry.source_hw
    clipped = np.clip(np.array(box, np.float64), 0, (width, height, width, height))
    if clipped[0] >= clipped[2] or clipped[1] >= clipped[3]:
        raise UsageError(f"The box {list(box)} lies outside of the picture of {width} x {height} pixels.")
    return clipped
