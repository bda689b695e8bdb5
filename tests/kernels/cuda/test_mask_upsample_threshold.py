"""Masks bit for bit as those that are run-length coded on the CPU."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from vtk.kernels.mask_upsample_threshold import cuda, reference
from vtk.kernels.mask_upsample_threshold.reference import PackedMasks
from vtk.postprocess.masks import masks_in_source
from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe, ResizeMode

pytestmark = pytest.mark.usefixtures("interpreted")


def axes_of(geometry: Geometry, cells_hw: tuple[int, int]) -> torch.Tensor:
    rows = [
        [geometry.scale_xy[axis], geometry.offset_xy[axis], cells_hw[1 - axis] / geometry.input_hw[1 - axis]]
        for axis in (0, 1)
    ]
    return torch.tensor(rows, dtype=torch.float64)


def unpack(masks: PackedMasks, height: int) -> np.ndarray:
    """(N, H, W)."""
    bits = np.unpackbits(masks.bits.numpy(), axis=2, bitorder="little")
    assert not bits[:, :, height:].any()
    return bits[:, :, :height].transpose(0, 2, 1).astype(np.bool_)


def check(module: ModuleType, values: torch.Tensor, geometry: Geometry, threshold: float) -> None:
    axes = axes_of(geometry, values.shape[1:])
    found = module.mask_upsample_threshold(values, geometry.source_hw, axes, threshold)
    wanted = masks_in_source(values.float().numpy(), geometry, threshold=threshold)
    np.testing.assert_array_equal(unpack(found, geometry.source_hw[0]), wanted.dense())
    assert found.areas.tolist() == wanted.areas.tolist()
    for mask, box in zip(wanted.dense(), found.boxes.tolist(), strict=True):
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        enclosing = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1] if len(rows) else [0, 0, 0, 0]
        assert box == enclosing


def blobs(*shape: int) -> torch.Tensor:
    """Noise on one hill per mask, so that boxes are smaller than the picture."""
    count, height, width = shape
    center = torch.rand(count, 2, 1, 1)
    y, x = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)
    distance = (y - center[:, 0]).square() + (x - center[:, 1]).square()
    return 1.5 - 12 * distance + torch.randn(shape) * 0.4


@pytest.mark.parametrize("module", [cuda, reference])
@pytest.mark.parametrize("resize", ["stretch", "letterbox", "center_crop"])
@pytest.mark.parametrize("source_hw", [(75, 101), (9, 64), (128, 30)])
def test_every_geometry(module: ModuleType, resize: ResizeMode, source_hw: tuple[int, int]) -> None:
    check(module, blobs(3, 12, 16), geometry_for(Recipe((48, 64), resize), source_hw), 0.2)


@pytest.mark.parametrize("module", [cuda, reference])
@pytest.mark.parametrize("cells_hw", [(1, 1), (1, 9), (40, 2)])
def test_few_cells_and_shrinking(module: ModuleType, cells_hw: tuple[int, int]) -> None:
    check(module, torch.randn(2, *cells_hw), geometry_for(Recipe((48, 64)), (17, 23)), 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_strides(dtype: torch.dtype) -> None:
    values = torch.full((2, 16, 14), torch.nan, dtype=dtype)[:, :, 1:13].transpose(1, 2)
    values.copy_(blobs(2, 12, 16))
    check(cuda, values, geometry_for(Recipe((48, 64)), (33, 41)), 0.1)


@pytest.mark.parametrize("module", [cuda, reference])
def test_values_at_the_threshold_are_not_set(module: ModuleType) -> None:
    check(module, torch.full((1, 4, 4), 0.5), geometry_for(Recipe((16, 16)), (20, 12)), 0.5)
    check(module, torch.full((1, 4, 4), 0.75), geometry_for(Recipe((16, 16)), (20, 12)), 0.5)


@pytest.mark.parametrize("module", [cuda, reference])
def test_no_masks(module: ModuleType) -> None:
    found = module.mask_upsample_threshold(torch.zeros(0, 4, 4), (9, 5), torch.ones(2, 3, dtype=torch.float64), 0.0)
    assert (found.bits.shape, found.areas.shape, found.boxes.shape) == ((0, 5, 2), (0,), (0, 4))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"axes \(2, 3\) float64"):
        cuda.mask_upsample_threshold(torch.zeros(1, 4, 4), (9, 5), torch.ones(2, 3), 0.0)


MUTATIONS = {
    "not strictly above": ("(value > threshold)", "(value >= threshold)"),
    "rows beyond the picture": ("(x < width)[:, None] & (y < height)[None, :]", "(x < width)[:, None]"),
    "columns beyond the picture": ("(x < width)[:, None] & (y < height)[None, :]", "(y < height)[None, :]"),
    "mask of the bytes dropped": ("(x < width)[:, None] & (byte < column_bytes)[None, :]", "(x < width)[:, None]"),
    "corners aligned": ("pixel.to(tl.float64) + 0.5", "pixel.to(tl.float64)"),
    "offset forgotten": ("* scale + offset)", "* scale)"),
    "wrong scale": (" * density - 0.5", " * scale - 0.5"),
    "border not clamped": ("tl.maximum(place, 0.0)", "tl.maximum(place, -1.0)"),
    "cell off by one": ("tl.minimum(left + 1, cell_columns - 1)", "tl.minimum(left + 2, cell_columns - 1)"),
    "axes mixed up": ("_place(axes + 3, y", "_place(axes, y"),
    "bits from the other end": ("<< tl.arange(0, 8)", "<< (7 - tl.arange(0, 8))"),
    "box off by one": ("x + 1, 0), 0))", "x, 0), 0))"),
    "area of the last tile": ("tl.atomic_add(areas + index, area)", "tl.store(areas + index, area)"),
    "mask forgotten": ("mask = values + index * values_mask", "mask = values"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(mutated: Callable[..., ModuleType], name: str) -> None:
    module = mutated("vtk.kernels.mask_upsample_threshold.cuda", *MUTATIONS[name])
    with pytest.raises((AssertionError, InterpreterError)):
        check_all(module)


def check_all(module: ModuleType) -> None:
    geometry = geometry_for(Recipe((48, 64), "letterbox"), (75, 80))
    check(module, blobs(2, 12, 16) + 0.5, geometry, 0.0)
    check(module, torch.full((1, 4, 4), 0.5), geometry, 0.5)
    check(module, torch.ones(1, 4, 4), geometry, 0.5)
    steep = torch.full((1, 4, 4), 100.0)  # a border that is carried on beyond itself changes its sign
    steep[:, 0] = steep[:, :, 0] = 1.0
    check(module, steep, geometry, 0.0)
