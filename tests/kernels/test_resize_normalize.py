"""The compiled resize and normalization against Pillow and NumPy: every bit, and no byte outside of the buffers."""

import mmap
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from vtk.kernels import cpu_library
from vtk.kernels.resize_normalize import cpu
from vtk.kernels.resize_normalize.tables import Filter
from vtk.preprocess import apply
from vtk.preprocess.geometry import geometry_for
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe, ResizeMode

PAD = 99
Pixels = npt.NDArray[np.uint8]


def random_picture(rng: np.random.Generator, height: int, width: int) -> Pixels:
    """Noise, half of it black and white, so that bicubic overshoots."""
    noise = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return np.where(rng.random((height, width, 1)) < 0.5, noise, noise // 128 * 255).astype(np.uint8)


def at_the_end_of_memory(picture: Pixels) -> Pixels:
    """The same picture, its last byte the last one of a mapping: what lies behind it cannot be read."""
    pages = -(-picture.size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = np.frombuffer(memory, np.uint8)
    libc_protect(whole.ctypes.data + pages * mmap.PAGESIZE)
    copy = whole[pages * mmap.PAGESIZE - picture.size : pages * mmap.PAGESIZE].reshape(picture.shape)
    copy[:] = picture
    return copy


def libc_protect(address: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0


def by_pillow(picture: Pixels, recipe: Recipe) -> npt.NDArray[np.float32]:
    out = np.empty((3, *recipe.size_hw), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply, "available", lambda: False)
        apply.preprocess_into(picture, recipe, out)
    return out


def compiled(picture: Pixels, recipe: Recipe) -> npt.NDArray[np.float32]:
    place = geometry_for(recipe, picture.shape[:2])
    guarded = np.full(3 * recipe.size_hw[0] * recipe.size_hw[1] + 128, np.nan, np.float32)
    out = guarded[64:-64].reshape(3, *recipe.size_hw)
    values = cpu.byte_values(recipe.mean, recipe.std)
    interpolation: Any = recipe.interpolation
    cpu.resize_normalize(picture, place.resized_hw, place.offset_xy, interpolation, out, values, recipe.pad_value)
    assert np.isnan(guarded[:64]).all()
    assert np.isnan(guarded[-64:]).all()
    return out


def recipe_of(size_hw: tuple[int, int], interpolation: Filter, resize: ResizeMode) -> Recipe:
    return Recipe(size_hw, resize, interpolation, IMAGENET_MEAN, IMAGENET_STD, pad_value=PAD, crop_fraction=0.8)


@pytest.mark.parametrize("interpolation", get_args(Filter))
@pytest.mark.parametrize("resize", get_args(ResizeMode))
def test_equal_to_pillow_bit_for_bit(isa: str, interpolation: Filter, resize: ResizeMode) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed, isa)
    rng = np.random.default_rng(seed)
    for _ in range(25):
        height, width, out_height, out_width = (int(rng.choice([1, 2, rng.integers(1, 220)])) for _ in range(4))
        picture = at_the_end_of_memory(random_picture(rng, height, width))
        recipe = recipe_of((out_height, out_width), interpolation, resize)
        np.testing.assert_array_equal(compiled(picture, recipe), by_pillow(picture, recipe))


@pytest.mark.parametrize("shape", [(1080, 1920), (600, 200), (37, 1000), (1000, 37)])
def test_pictures_of_usual_and_of_odd_shapes(isa: str, shape: tuple[int, int]) -> None:
    """Both orders of the two passes."""
    picture = random_picture(np.random.default_rng(), *shape)
    for size_hw in ((64, 96), (320, 320)):
        recipe = recipe_of(size_hw, "pil_bilinear", "stretch")
        np.testing.assert_array_equal(compiled(picture, recipe), by_pillow(picture, recipe))


def test_a_picture_of_the_size_of_the_input_is_only_normalized(isa: str) -> None:
    picture = random_picture(np.random.default_rng(), 31, 17)
    found = compiled(picture, Recipe((31, 17), mean=IMAGENET_MEAN, std=IMAGENET_STD))
    mean, std = (np.array(triple, np.float32)[:, None, None] for triple in (IMAGENET_MEAN, IMAGENET_STD))
    np.testing.assert_array_equal(found, (picture.transpose(2, 0, 1).astype(np.float32) / np.float32(255) - mean) / std)


def test_wrong_buffers_are_refused() -> None:
    picture, out = np.zeros((4, 5, 3), np.uint8), np.zeros((3, 2, 2), np.float32)
    values = cpu.byte_values((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    for wrong in (picture[:, ::-1], picture[..., :2], picture.astype(np.int8)):
        with pytest.raises(ValueError, match="uint8"):
            cpu.resize_normalize(wrong, (2, 2), (0, 0), "pil_bilinear", out, values)
    for wrong_out in (out[:, :, ::-1], out[:2], out.astype(np.float64)):
        with pytest.raises(ValueError, match="float32"):
            cpu.resize_normalize(picture, (2, 2), (0, 0), "pil_bilinear", wrong_out, values)
    with pytest.raises(ValueError, match="float32"):
        cpu.resize_normalize(picture, (2, 2), (0, 0), "pil_bilinear", out, values[:, :255])
    with pytest.raises(ValueError, match="positive"):
        cpu.resize_normalize(picture, (0, 2), (0, 0), "pil_bilinear", out, values)


def test_the_portable_kernel_is_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, expected in (((True, "avx2"), True), ((True, "portable"), False), ((False, "no compiler"), False)):
        monkeypatch.setattr(cpu_library, "available", lambda answer=answer: answer)
        cpu.available.cache_clear()
        assert cpu.available() is expected
    cpu.available.cache_clear()
