"""Masks in the source picture: the same bits as the whole picture in float would give, without ever holding it."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import map_coordinates

from vtk.postprocess import masks as masks_module
from vtk.postprocess.masks import Masks, masks_in_source
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe

Values = npt.NDArray[np.float32]


def stretched(source_hw: tuple[int, int], input_hw: tuple[int, int] = (64, 64)) -> Geometry:
    return geometry_for(Recipe(input_hw), source_hw)


def by_torch(values: Values, size_hw: tuple[int, int]) -> npt.NDArray[np.float32]:
    """All masks at once as float32, as the official code does."""
    return F.interpolate(torch.from_numpy(values)[:, None], size_hw, mode="bilinear", align_corners=False)[:, 0].numpy()


def runs_by_definition(mask: npt.NDArray[np.bool_]) -> list[int]:
    counts, value = [0], False
    for pixel in mask.T.ravel():
        if pixel != value:
            counts.append(0)
            value = not value
        counts[-1] += 1
    return counts


@pytest.mark.parametrize(("grid", "factor"), [((4, 4), 8), ((6, 4), 4), ((5, 7), 2), ((1, 3), 16), ((3, 3), 1)])
def test_equals_torch_bit_for_bit_where_arithmetic_is_exact(
    grid: tuple[int, int], factor: int, rng: np.random.Generator
) -> None:
    """Small whole numbers enlarged by powers of two: every value is exact, and many equal a threshold."""
    values = rng.integers(-8, 8, (5, *grid)).astype(np.float32)
    values[0] = 1
    size_hw = (grid[0] * factor, grid[1] * factor)
    full = by_torch(values, size_hw)
    for threshold in (0.0, 1.0, -3.5):
        result = masks_in_source(values, stretched(size_hw, grid), threshold=threshold)
        np.testing.assert_array_equal(result.dense(), full > threshold)


@pytest.mark.parametrize("size_hw", [(37, 91), (200, 3), (1, 1), (64, 64), (9, 11), (301, 240)])
def test_equals_torch_at_any_size(size_hw: tuple[int, int], rng: np.random.Generator) -> None:
    values = rng.normal(size=(3, 24, 24)).astype(np.float32)
    full = by_torch(values, size_hw)
    result = masks_in_source(values, stretched(size_hw), threshold=0.25).dense()
    wrong = result != (full > 0.25)
    assert not wrong[np.abs(full - 0.25) > 1e-5].any()
    assert result.shape == full.shape


@pytest.mark.parametrize("resize", ["stretch", "letterbox", "center_crop"])
@pytest.mark.parametrize("source_hw", [(45, 80), (80, 45)])
def test_the_geometry_decides_what_a_pixel_sees(
    resize: str, source_hw: tuple[int, int], rng: np.random.Generator
) -> None:
    """Each pixel's center is mapped to the network input and looked up there, one by one."""
    geometry = geometry_for(Recipe((64, 96), resize=resize), source_hw)  # type: ignore[arg-type]
    values = rng.normal(size=(2, 16, 12)).astype(np.float32)
    rows, columns = np.indices(source_hw) + 0.5
    x, y = np.moveaxis(geometry.points_to_input(np.stack([columns, rows], axis=-1)), -1, 0)
    result = masks_in_source(values, geometry, threshold=0.0)
    for mask, value in zip(result.dense(), values.astype(np.float64), strict=True):
        full = map_coordinates(value, [y * 16 / 64 - 0.5, x * 12 / 96 - 0.5], order=1, mode="nearest")
        assert not (mask != (full > 0))[np.abs(full) > 1e-5].any()


def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    values = np.concatenate([rng.normal(size=(2, 9, 9)), np.pad(rng.normal(size=(3, 2, 2)), ((0, 0), (0, 7), (7, 0)))])
    values = values.astype(np.float32)
    geometry = stretched((50, 77))
    for threshold in (0.0, 0.5, -0.5):
        found = []
        for pixels in (1, 50, 333, 1 << 20):
            monkeypatch.setattr(masks_module, "STRIP_PIXELS", pixels)
            found.append(masks_in_source(values, geometry, threshold=threshold).rle)
        assert found[1:] == found[:-1]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_values_at_the_threshold_are_not_skipped(scale: float) -> None:
    """A picture without a value above the threshold is not computed; one float above it is."""
    threshold = float(np.float32(scale))
    values = np.full((1, 8, 8), threshold, np.float32)
    assert masks_in_source(values, stretched((40, 40)), threshold=threshold).areas.tolist() == [0]
    above = np.nextafter(values, np.float32(np.inf))
    assert masks_in_source(above, stretched((40, 40)), threshold=threshold).areas.tolist() == [1600]


def test_run_lengths_are_those_of_the_definition(rng: np.random.Generator) -> None:
    values = rng.normal(size=(4, 6, 6)).astype(np.float32)
    values[3] = 1
    result = masks_in_source(values, stretched((31, 20)), threshold=0.1)
    for index, mask in enumerate(result.dense()):
        assert masks_module.unpack_counts(result.rle[index]).tolist() == runs_by_definition(mask)
        np.testing.assert_array_equal(result[index], mask)
    assert result.areas.tolist() == result.dense().sum(axis=(1, 2)).tolist()
    assert result.to_coco(3) == {"size": [31, 20], "counts": result.rle[3].decode()}
    assert runs_by_definition(result[3]) == [0, 620]


def test_no_masks_are_a_well_shaped_nothing_case_v48() -> None:
    result = masks_in_source(np.zeros((0, 160, 160), np.float32), stretched((48, 64)), threshold=0.0)
    assert (len(result), result.dense().shape, result.areas.shape) == (0, (0, 48, 64), (0,))
    assert result.resolution_wh == (64, 48)


DENSE_SCENE = """
import re, sys
import numpy as np
from pathlib import Path
from vtk.postprocess.masks import Masks, masks_in_source
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import Recipe

def peak_mb():  # not ru_maxrss: that starts at the size of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

rng = np.random.default_rng(0)
rows, columns = np.mgrid[0:288, 0:288].astype(np.float32)
values = np.empty((200, 288, 288), np.float32)
for index, (y, x, radius) in enumerate(rng.uniform((0, 0, 5), (288, 288, 60), (200, 3))):
    values[index] = radius - np.hypot(rows - y, columns - x)
values[:2] = rng.normal(size=(2, 288, 288))  # noise: a million runs each
masks = masks_in_source(values, geometry_for(Recipe((1008, 1008)), (4000, 6000)), threshold=0.0)
print(len(masks), peak_mb(), *masks.areas)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux")
def test_case_v52_200_masks_of_24_megapixels_stay_below_1_gb() -> None:
    """They would be 19.2 GB as float32."""
    command: list[Any] = [sys.executable, "-c", DENSE_SCENE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, peak, *areas = map(int, done.stdout.split())
    assert count == len(areas) == 200
    assert peak < 1024
    assert min(areas) > 0
    assert areas[0] == pytest.approx(12_000_000, rel=0.02)


def test_only_a_strip_of_one_mask_is_held_as_numbers() -> None:
    """A mask of 24 megapixels is 96 MB as float32 and 24 MB as bytes."""
    values = np.linalg.norm(np.mgrid[-40:40, -40:40], axis=0)[None].astype(np.float32)
    tracemalloc.start()
    try:
        result = masks_in_source(values, stretched((4000, 6000)), threshold=30.0)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
    assert len(result.rle[0]) < 60_000


def test_detections_keep_each_mask_with_its_box() -> None:
    rng = np.random.default_rng()
    masks = masks_in_source(rng.normal(size=(3, 8, 8)).astype(np.float32), stretched((20, 30)), threshold=0.0)
    boxes, scores = rng.random((3, 4), np.float32), np.array([0.9, 0.5, 0.7], np.float32)
    found = Detections(boxes, scores, np.arange(3), (30, 20), masks)
    for keep in (scores > 0.6, np.array([0, 2]), slice(0, 3, 2)):
        chosen = found.select(keep)
        assert chosen.masks is not None
        assert chosen.masks.rle == (masks.rle[0], masks.rle[2])
    for wrong in (masks.select(np.array([0])), Masks(masks.rle, (20, 30))):
        with pytest.raises(ValueError, match="expected 3 masks"):
            Detections(boxes, scores, np.arange(3), (30, 20), wrong)
