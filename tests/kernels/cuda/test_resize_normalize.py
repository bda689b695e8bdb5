"""Ragged batches in one launch, equal to the last bit to what `preprocess` makes of each picture through Pillow."""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from vtk.kernels.resize_normalize import cuda, reference
from vtk.kernels.resize_normalize.plan import Placement, ResizePlan, plan_resize
from vtk.kernels.resize_normalize.tables import Filter, axis_table
from vtk.preprocess.apply import preprocess
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe, ResizeMode
from vtk.preprocess.resize import RGBImage

pytestmark = pytest.mark.usefixtures("interpreted")

FILTERS: tuple[Filter, ...] = ("pil_bilinear", "pil_bicubic")
STRAY = 201  # of bytes that belong to no picture


def recipe_of(size_hw: tuple[int, int], interpolation: Filter, resize: ResizeMode = "stretch") -> Recipe:
    return Recipe(size_hw, resize, interpolation, IMAGENET_MEAN, IMAGENET_STD, pad_value=99, crop_fraction=0.8)


def random_picture(rng: np.random.Generator, height: int, width: int) -> RGBImage:
    """Noise, half of it black and white, so that bicubic overshoots."""
    noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(rng.random((height, width, 1)) < 0.5, noise, noise // 128 * 255).astype(np.uint8)


def pack(pictures: Sequence[RGBImage], recipe: Recipe, *, gap: int = 5) -> tuple[torch.Tensor, ResizePlan]:
    """The pictures one after the other, stray bytes between them, none behind the last one."""
    parts, placements, start = [], [], gap
    for picture in pictures:
        geometry = geometry_for(recipe, picture.shape[:2])
        placements.append(Placement(start, geometry.source_hw, geometry.resized_hw, geometry.offset_xy))
        parts += [np.full(gap, STRAY, np.uint8), picture.ravel()]
        start += picture.size + gap
    assert recipe.interpolation != "cv2_linear"
    return torch.from_numpy(np.concatenate(parts)), plan_resize(placements, recipe.size_hw, recipe.interpolation)


def check(
    module: ModuleType,
    buffer: Callable[..., Any],
    pictures: Sequence[RGBImage],
    recipe: Recipe,
    dtype: torch.dtype = torch.float32,
) -> None:
    pixels, plan = pack(pictures, recipe)
    out = buffer(len(pictures), 3, *recipe.size_hw, dtype=dtype, gap=7)
    module.resize_normalize(pixels, plan, out.tensor, recipe.mean, recipe.std, recipe.pad_value)
    expected = torch.from_numpy(np.stack([preprocess(picture, recipe).tensor for picture in pictures]))
    assert torch.equal(out.tensor, expected.to(dtype))
    assert out.intact()


@pytest.mark.parametrize("interpolation", FILTERS)
def test_two_hundred_size_pairs(
    buffer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, interpolation: Filter
) -> None:
    # One tile per picture: what the interpreter takes is per operation, whatever the size of a tile.
    monkeypatch.setattr(cuda, "BLOCK_Y", 16)
    monkeypatch.setattr(cuda, "BLOCK_X", 64)
    rng = np.random.default_rng()
    for _ in range(20):
        height, width = rng.integers(6, 17, 2).tolist()
        pictures = [random_picture(rng, *rng.integers(1, 26, 2).tolist()) for _ in range(10)]
        check(cuda, buffer, pictures, recipe_of((height, width), interpolation))


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("resize", ["letterbox", "center_crop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_borders_and_cuts(
    buffer: Callable[..., Any], interpolation: Filter, resize: ResizeMode, dtype: torch.dtype
) -> None:
    rng = np.random.default_rng()
    pictures = [random_picture(rng, *size) for size in ((30, 9), (9, 30), (12, 17), (1, 1))]
    check(cuda, buffer, pictures, recipe_of((12, 17), interpolation, resize), dtype)


@pytest.mark.parametrize("interpolation", FILTERS)
def test_strips_and_single_pixels(buffer: Callable[..., Any], interpolation: Filter) -> None:
    rng = np.random.default_rng()
    pictures = [random_picture(rng, *size) for size in ((1, 1), (1, 60), (40, 1), (5, 50), (7, 7))]
    check(cuda, buffer, pictures, recipe_of((5, 50), interpolation))


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("resize", ["stretch", "letterbox", "center_crop"])
def test_the_reference_is_pillow_too(buffer: Callable[..., Any], interpolation: Filter, resize: ResizeMode) -> None:
    rng = np.random.default_rng()
    for _ in range(5):
        pictures = [random_picture(rng, *rng.integers(1, 300, 2).tolist()) for _ in range(3)]
        height, width = rng.integers(1, 200, 2).tolist()
        check(reference, buffer, pictures, recipe_of((height, width), interpolation, resize))


def test_a_column_of_a_huge_picture_is_not_resized_whole() -> None:
    """Case of a strip whose center is cut out: the table is as long as the network input, not as the strip."""
    table = axis_table(100_000, 25_600_000, -12_799_872, 256, "pil_bilinear")
    assert table.shape == (256, 2 + 2)
    assert (table[:, 2:].sum(1) == 1 << 22).all()


def test_nothing_is_launched_for_no_picture() -> None:
    plan = plan_resize([], (4, 4), "pil_bilinear")
    out = torch.empty(0, 3, 4, 4)
    assert cuda.resize_normalize(torch.empty(0, dtype=torch.uint8), plan, out, IMAGENET_MEAN, IMAGENET_STD) is out


def test_wrong_buffers_are_refused() -> None:
    plan = plan_resize([Placement(4, (2, 3), (4, 4), (0, 0))], (4, 4), "pil_bilinear")
    out = torch.empty(1, 3, 4, 4)
    with pytest.raises(ValueError, match="22 packed uint8 pixels"):
        cuda.resize_normalize(torch.empty(21, dtype=torch.uint8), plan, out, IMAGENET_MEAN, IMAGENET_STD)
    with pytest.raises(ValueError, match=r"an output of \(1, 3, 4, 4\)"):
        cuda.resize_normalize(torch.empty(22, dtype=torch.uint8), plan, out[:, :, :3], IMAGENET_MEAN, IMAGENET_STD)


MUTATIONS = {
    "mask of the source dropped": ("mask=used, other=0", ""),
    "mask of the output dropped": (", mask=(y < height)[:, None] & (x < width)[None, :]", ""),
    "off by one tap": ("TABLE_HEAD + tap", "TABLE_HEAD + tap + 1"),
    "no rounding between the passes": ("total >> PRECISION_BITS, 0), 255)", "total >> PRECISION_BITS, 0), 999)"),
    "rounding down": ("total = tl.full([BLOCK_Y, BLOCK_X], HALF", "total = tl.full([BLOCK_Y, BLOCK_X], 0"),
    "passes in the other order": ("if y_first != 0:", "if y_first == 0:"),
    "start of the picture forgotten": ("pixels + tl.load(header)", "pixels"),
    "row of the picture forgotten": ("first_y[:, None] * row_bytes", "first_y[:, None]"),
    "channels mixed up": ("channel == 1, green, blue", "channel == 1, blue, green"),
    "wrong scale": ("255.0", "256.0"),
    "border not filled": ("_to_byte(total), pad_value)", "_to_byte(total), 0)"),
}  # fmt: skip


def check_modes(module: ModuleType, buffer: Callable[..., Any], pictures: Sequence[RGBImage]) -> None:
    check(module, buffer, pictures, recipe_of((9, 11), "pil_bicubic", "letterbox"))
    check(module, buffer, pictures, recipe_of((9, 11), "pil_bicubic"))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(mutated: Callable[..., ModuleType], buffer: Callable[..., Any], name: str) -> None:
    module = mutated("vtk.kernels.resize_normalize.cuda", *MUTATIONS[name])
    rng = np.random.default_rng(3)
    pictures = [random_picture(rng, *size) for size in ((9, 20), (15, 12), (23, 9))]
    with pytest.raises((AssertionError, InterpreterError)):
        check_modes(module, buffer, pictures)
