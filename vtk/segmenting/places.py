"""Points, their labels and boxes as callers give them, lists or arrays, as tuples of plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from vtk.errors import UsageError, in_short

Point = tuple[float, float]
Box = tuple[float, float, float, float]
Points: TypeAlias = "Sequence[Point] | npt.NDArray[np.number[Any]]"
PointLabels: TypeAlias = "Sequence[int] | npt.NDArray[np.number[Any]]"
Boxes: TypeAlias = "Sequence[Box] | npt.NDArray[np.number[Any]]"

ON, BESIDE = 1, 0

_POINT = "A point is x, y in pixels"
_BOX = "A box is left, top, right, bottom in pixels with an area above 0"
_LABEL = "A point is labeled 1, on the object, or 0, beside it"


def points_of(values: Points) -> tuple[Point, ...]:
    """values: (x, y) of each, or an array (n, 2). Raises UsageError for what are no points."""
    hint = "Pass points as a list, as in [(120, 80)]."
    return cast("tuple[Point, ...]", tuple(_row(value, 2, _POINT, hint) for value in items_of(values, _POINT, hint)))


def labels_of_points(values: PointLabels) -> tuple[int, ...]:
    """values: 1 or 0 of each. Raises UsageError for other labels."""
    labels = items_of(values, _LABEL, "Pass labels as a list, as in [1, 0].")
    for label in labels:
        if not isinstance(label, Real | np.bool_) or label not in (ON, BESIDE):
            raise UsageError(f"{_LABEL}; got {in_short(repr(label))}.")
    return tuple(map(int, labels))


def boxes_of(values: Boxes) -> tuple[Box, ...]:
    """values: (left, top, right, bottom) of each, or an array (n, 4). Raises UsageError for what are no boxes."""
    hint = "Pass boxes as a list, as in [(10, 20, 200, 300)]."
    return tuple(_checked_box(value, hint) for value in items_of(values, _BOX, hint))


def box_of(value: Sequence[float] | npt.NDArray[np.number[Any]]) -> Box:
    """value: left, top, right, bottom. Raises UsageError for what is no box."""
    return _checked_box(value, None)


def items_of(values: object, expected: str, hint: str | None) -> tuple[Any, ...]:
    """What a list or an array holds. Raises UsageError for what is neither."""
    try:
        return tuple(cast("Iterable[Any]", values))
    except TypeError:  # an array of no dimension is iterable by its type only
        raise UsageError(f"{expected}, got {in_short(repr(values))}.", hint=hint) from None


def _checked_box(value: object, hint: str | None) -> Box:
    box = cast("Box", _row(value, 4, _BOX, hint))
    if box[0] >= box[2] or box[1] >= box[3]:
        raise UsageError(f"{_BOX}, got {in_short(repr(list(box)))}.")
    return box


def _row(value: object, length: int, expected: str, hint: str | None) -> tuple[float, ...]:
    row = items_of(value, expected, hint)
    if len(row) != length or not all(map(_is_finite, row)):
        raise UsageError(f"{expected}, got {in_short(repr(list(row)))}.")
    return tuple(map(float, row))


def _is_finite(value: object) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
