"""Box arithmetic that more than one detector needs."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from vtk.postprocess.results import FloatArray

Float = TypeVar("Float", bound=np.floating)


def cxcywh_to_xyxy(boxes: npt.NDArray[Float]) -> npt.NDArray[Float]:
    """(N, 4) center and size to (N, 4) corners, in the same unit and dtype."""
    center, half = boxes[:, :2], boxes[:, 2:] / 2
    return np.concatenate([center - half, center + half], axis=1)


def clip_boxes(xyxy: FloatArray, resolution_wh: tuple[int, int]) -> FloatArray:
    """(N, 4) xyxy limited to the picture, 0..w and 0..h."""
    width, height = resolution_wh
    return np.clip(xyxy, 0, np.array([width, height, width, height], dtype=xyxy.dtype))
