"""Masks as polygons, for formats that have no run lengths."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]


def outline(mask: npt.NDArray[np.bool_]) -> Points:
    """One polygon (K, 2) of x, y in pixels around a mask (H, W), empty where no pixel is set.

    It runs around the pixels, not through their centers, so that even one pixel has an area. Separate parts are joined
    by bridges without width, holes are filled: what one polygon can say. Takes four bytes of memory per pixel.
    """
    if not mask.any():
        return np.zeros((0, 2))
    # Twice as large, a contour through the pixels' centers lies a quarter of a pixel inside the true outline.
    doubled = np.repeat(np.repeat(mask.astype(np.uint8), 2, axis=0), 2, axis=1)
    contours = cv2.findContours(doubled, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)[0]
    rings = [np.asarray(contour, np.float64).reshape(-1, 2) for contour in contours]
    polygon: Points = _joined(rings) / 2 + 0.25
    return polygon


def _joined(rings: list[Points]) -> Points:
    """Rings one after the other, each closed, and back through their first points to where the polygon began."""
    if len(rings) == 1:
        return rings[0]
    closed = [np.concatenate([ring, ring[:1]]) for ring in rings]
    back = np.stack([ring[0] for ring in reversed(rings[:-1])])
    return np.concatenate([*closed, back])
