import cv2
import numpy as np
import numpy.typing as npt
import pytest
import timm.data
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from vtk.errors import ImageError, UsageError
from vtk.preprocess.apply import preprocess, preprocess_into
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe
from vtk.preprocess.resize import resize

RGBImage = npt.NDArray[np.uint8]
TORCH_MODE = {"pil_bilinear": InterpolationMode.BILINEAR, "pil_bicubic": InterpolationMode.BICUBIC}
SHAPES = [(48, 64), (300, 177), (31, 500), (224, 224), (1, 1)]


def _noise(rng: np.random.Generator, hw: tuple[int, int]) -> RGBImage:
    return rng.integers(0, 256, (*hw, 3), dtype=np.uint8)


def _checker() -> RGBImage:
    """64 x 64 squares of 3 pixels."""
    rows, columns = np.indices((64, 64)) // 3
    return np.repeat(((rows + columns) % 2 * 255).astype(np.uint8)[..., None], 3, axis=2)


def _torch_resize(picture: RGBImage, mode: InterpolationMode, *, antialias: bool) -> RGBImage:
    tensor = torch.from_numpy(picture).permute(2, 0, 1)
    resized = transforms.functional.resize(tensor, [16, 16], mode, antialias=antialias)
    return resized.permute(1, 2, 0).numpy()


def _distance(first: RGBImage, second: RGBImage) -> int:
    return int(np.abs(first.astype(int) - second.astype(int)).max())


def test_case_v39_each_interpolation_is_the_one_that_it_names() -> None:
    checker = _checker()
    bilinear = resize(checker, (16, 16), "pil_bilinear")
    bicubic = resize(checker, (16, 16), "pil_bicubic")
    linear = resize(checker, (16, 16), "cv2_linear")
    assert _distance(bilinear, _torch_resize(checker, InterpolationMode.BILINEAR, antialias=True)) == 0
    assert _distance(bilinear, _torch_resize(checker, InterpolationMode.BILINEAR, antialias=False)) == 123
    assert _distance(bilinear, linear) == 123
    assert _distance(linear, _torch_resize(checker, InterpolationMode.BILINEAR, antialias=False)) == 0
    assert _distance(bilinear, cv2.resize(checker, (16, 16), interpolation=cv2.INTER_AREA)) == 27
    assert _distance(bicubic, cv2.resize(checker, (16, 16), interpolation=cv2.INTER_CUBIC)) == 123
    assert _distance(bicubic, _torch_resize(checker, InterpolationMode.BICUBIC, antialias=True)) <= 1


@pytest.mark.parametrize("interpolation", ["pil_bilinear", "pil_bicubic"])
@pytest.mark.parametrize(
    "mean_std", [((0.0,) * 3, (1.0,) * 3), (IMAGENET_MEAN, IMAGENET_STD), ((0.5,) * 3, (0.4,) * 3)]
)
@pytest.mark.parametrize("hw", SHAPES)
def test_stretch_equals_torchvision_on_pillow_bit_for_bit(
    rng: np.random.Generator, interpolation: str, mean_std: tuple[tuple[float, ...], ...], hw: tuple[int, int]
) -> None:
    picture = _noise(rng, hw)
    official = transforms.Compose(
        [
            transforms.Resize((96, 64), TORCH_MODE[interpolation]),
            transforms.ToTensor(),
            transforms.Normalize(*mean_std),
        ]
    )
    recipe = Recipe((96, 64), "stretch", interpolation, *mean_std)  # type: ignore[arg-type]
    tensor = preprocess(picture, recipe).tensor
    np.testing.assert_array_equal(tensor, official(Image.fromarray(picture)).numpy())


@pytest.mark.parametrize("hw", [shape for shape in SHAPES if shape != (31, 500)])
@pytest.mark.parametrize(("size", "fraction"), [((64, 64), 0.875), ((64, 64), 0.9), ((56, 98), 0.875), ((70, 70), 1.0)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_center_crop_equals_timm_bit_for_bit(
    rng: np.random.Generator, hw: tuple[int, int], size: tuple[int, int], fraction: float, interpolation: str
) -> None:
    picture = _noise(rng, hw)
    official = timm.data.create_transform(
        (3, *size), interpolation=interpolation, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop_pct=fraction
    )
    recipe = Recipe(
        size,
        "center_crop",
        "pil_bicubic" if interpolation == "bicubic" else "pil_bilinear",
        IMAGENET_MEAN,
        IMAGENET_STD,
        crop_fraction=fraction,
    )
    np.testing.assert_array_equal(preprocess(picture, recipe).tensor, official(Image.fromarray(picture)).numpy())


def _letterbox_by_hand(picture: RGBImage, size_hw: tuple[int, int], pad: int) -> RGBImage:
    """What Ultralytics publishes for `LetterBox(auto=False)`: scale, resize, then borders of half the rest each."""
    ratio = min(size_hw[0] / picture.shape[0], size_hw[1] / picture.shape[1])
    width, height = round(picture.shape[1] * ratio), round(picture.shape[0] * ratio)
    rest_x, rest_y = (size_hw[1] - width) / 2, (size_hw[0] - height) / 2
    if picture.shape[1::-1] != (width, height):
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_LINEAR)
    top, bottom = round(rest_y - 0.1), round(rest_y + 0.1)
    left, right = round(rest_x - 0.1), round(rest_x + 0.1)
    return cv2.copyMakeBorder(picture, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(pad, pad, pad))


@pytest.mark.parametrize("hw", SHAPES)
@pytest.mark.parametrize("size", [(64, 64), (96, 160), (65, 64)])
@pytest.mark.parametrize("pad", [114, 0])
def test_letterbox_equals_the_published_steps(
    rng: np.random.Generator, hw: tuple[int, int], size: tuple[int, int], pad: int
) -> None:
    picture = _noise(rng, hw)
    recipe = Recipe(size, "letterbox", "cv2_linear", pad_value=pad)
    expected = _letterbox_by_hand(picture, size, pad).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    np.testing.assert_array_equal(preprocess(picture, recipe).tensor, expected)


@pytest.mark.parametrize("resize_mode", ["stretch", "letterbox", "center_crop"])
def test_the_geometry_returned_points_at_the_same_thing(rng: np.random.Generator, resize_mode: str) -> None:
    """A white dot of 8 x 8 pixels is found in the tensor where the geometry says."""
    picture = np.zeros((120, 200, 3), np.uint8)
    y, x = int(rng.integers(20, 90)), int(rng.integers(60, 130))
    picture[y : y + 8, x : x + 8] = 255
    recipe = Recipe((96, 96), resize_mode, pad_value=0)  # type: ignore[arg-type]
    result = preprocess(picture, recipe)
    weights = result.tensor[0].astype(np.float64)
    rows, columns = np.indices(weights.shape) + 0.5
    center = np.array([(columns * weights).sum(), (rows * weights).sum()]) / weights.sum()
    expected = result.geometry.points_to_input(np.array([x + 4.0, y + 4.0]))
    # Ultralytics maps letterboxed boxes by the gain before the picture is rounded to whole pixels.
    np.testing.assert_allclose(center, expected, atol=0.6 if resize_mode == "letterbox" else 0.1)


def test_rows_of_a_batch_are_written_in_place(rng: np.random.Generator) -> None:
    recipe = Recipe((32, 32), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    pictures = [_noise(rng, (40, 50)), _noise(rng, (33, 20))]
    batch = np.full((3, 3, 32, 32), np.nan, np.float32)
    for row, picture in zip(batch, pictures, strict=False):
        preprocess_into(picture, recipe, row)
    for row, picture in zip(batch, pictures, strict=False):
        single = preprocess(picture, recipe).tensor
        assert single.flags.c_contiguous
        np.testing.assert_array_equal(row, single)
    assert np.isnan(batch[2]).all()


def test_read_only_and_strided_pictures_are_taken_and_left_alone(rng: np.random.Generator) -> None:
    whole = _noise(rng, (60, 60))
    view = whole[::2, ::-1]
    view.flags.writeable = False
    for interpolation in ("pil_bilinear", "cv2_linear"):
        recipe = Recipe((24, 24), interpolation=interpolation)  # type: ignore[arg-type]
        expected = preprocess(np.ascontiguousarray(view), recipe).tensor
        np.testing.assert_array_equal(preprocess(view, recipe).tensor, expected)


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((3, 8, 8), np.uint8),
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((8, 8, 3), np.float32),
        np.zeros((0, 8, 3), np.uint8),
    ],
)
def test_other_layouts_are_refused_by_name(picture: npt.NDArray[np.generic]) -> None:
    with pytest.raises(UsageError, match=r"RGB uint8 \(height, width, 3\)"):
        preprocess(picture, Recipe((8, 8)))  # type: ignore[arg-type]


def test_a_wrong_output_is_refused() -> None:
    with pytest.raises(ValueError, match="expected out"):
        preprocess_into(np.zeros((8, 8, 3), np.uint8), Recipe((8, 8)), np.zeros((3, 8, 9), np.float32))


def test_a_strip_is_not_blown_up_by_a_center_crop() -> None:
    strip = np.zeros((1, 1_000_000, 3), np.uint8)
    with pytest.raises(ImageError, match="256000000 x 256") as caught:
        preprocess(strip, Recipe((224, 224), "center_crop", crop_fraction=0.875))
    assert caught.value.reason == "too_large"
    assert preprocess(strip, Recipe((64, 64), "letterbox", "cv2_linear")).tensor.shape == (3, 64, 64)
    assert preprocess(strip, Recipe((64, 64))).tensor.shape == (3, 64, 64)
