import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe

sides = st.integers(1, 5000)
inputs = st.tuples(st.integers(1, 1333), st.integers(1, 1333))
recipes = st.builds(
    Recipe,
    size_hw=inputs,
    resize=st.sampled_from(["stretch", "letterbox", "center_crop"]),
    crop_fraction=st.sampled_from([0.875, 0.9, 0.95, 1.0]),
    scale_up=st.booleans(),
)
geometries = st.builds(geometry_for, recipes, st.tuples(sides, sides))


def _geometry(resize: str, size_hw: tuple[int, int], source_hw: tuple[int, int], **fields: object) -> Geometry:
    return geometry_for(Recipe(size_hw=size_hw, resize=resize, **fields), source_hw)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("resize", "expected"), [("stretch", [640, 360, 960, 450]), ("letterbox", [640, 360, 960, 520])]
)
def test_case_v38_stretch_and_letterbox_read_the_same_network_box_differently(
    resize: str, expected: list[float]
) -> None:
    geometry = _geometry(resize, (640, 640), (720, 1280))
    box = np.array([[320, 320, 480, 400]], np.float32)
    np.testing.assert_allclose(geometry.boxes_to_source(box), [expected], rtol=1e-6)


@pytest.mark.parametrize(
    ("source_hw", "size_hw", "resized_hw", "offset_xy"),
    [
        ((720, 1280), (640, 640), (360, 640), (0, 140)),
        ((1280, 720), (640, 640), (640, 360), (140, 0)),
        ((427, 640), (640, 640), (427, 640), (0, 106)),  # odd border of 213: 106 above, 107 below
        ((480, 640), (384, 640), (384, 512), (64, 0)),
        ((100, 37), (64, 64), (64, 24), (20, 0)),
        ((1, 5000), (640, 640), (1, 640), (0, 319)),  # never rounds to nothing; border 639 is odd
    ],
)
def test_letterbox_rounds_as_ultralytics_does(
    source_hw: tuple[int, int], size_hw: tuple[int, int], resized_hw: tuple[int, int], offset_xy: tuple[int, int]
) -> None:
    geometry = _geometry("letterbox", size_hw, source_hw)
    assert (geometry.resized_hw, geometry.offset_xy) == (resized_hw, offset_xy)


def test_letterbox_without_scale_up_only_adds_borders_to_a_small_picture() -> None:
    geometry = _geometry("letterbox", (64, 64), (10, 20), scale_up=False)
    assert (geometry.resized_hw, geometry.scale_xy, geometry.offset_xy) == ((10, 20), (1.0, 1.0), (22, 27))


@pytest.mark.parametrize(
    ("source_hw", "size_hw", "fraction", "resized_hw", "offset_xy"),
    [
        ((480, 640), (224, 224), 0.875, (256, 341), (-58, -16)),  # 117 cut from the width: 58.5 rounds to even
        ((640, 480), (224, 224), 0.9, (330, 248), (-12, -53)),  # 248.9 is cut off, not rounded
        ((100, 100), (224, 224), 1.0, (224, 224), (0, 0)),
        ((480, 640), (128, 256), 1.0, (192, 256), (0, -32)),
    ],
)
def test_center_crop_rounds_as_timm_does(
    source_hw: tuple[int, int],
    size_hw: tuple[int, int],
    fraction: float,
    resized_hw: tuple[int, int],
    offset_xy: tuple[int, int],
) -> None:
    geometry = _geometry("center_crop", size_hw, source_hw, crop_fraction=fraction)
    assert (geometry.resized_hw, geometry.offset_xy) == (resized_hw, offset_xy)


@given(geometries, st.lists(st.floats(-2000, 7000, width=32), min_size=4, max_size=40))
def test_round_trip_is_the_identity(geometry: Geometry, numbers: list[float]) -> None:
    boxes = np.array(numbers[: len(numbers) // 4 * 4], np.float64).reshape(-1, 4)
    np.testing.assert_allclose(geometry.boxes_to_source(geometry.boxes_to_input(boxes)), boxes, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(geometry.boxes_to_input(geometry.boxes_to_source(boxes)), boxes, rtol=1e-9, atol=1e-6)


@given(geometries, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_order_and_containment_survive(geometry: Geometry, x1: float, x2: float, y1: float, y2: float) -> None:
    height, width = geometry.source_hw
    box = np.array([min(x1, x2) * width, min(y1, y2) * height, max(x1, x2) * width, max(y1, y2) * height])
    mapped = geometry.boxes_to_input(box)
    assert mapped[0] <= mapped[2]
    assert mapped[1] <= mapped[3]
    whole = geometry.boxes_to_input(np.array([0.0, 0.0, width, height]))
    assert (whole[:2] <= mapped[:2] + 1e-9).all()
    assert (mapped[2:] <= whole[2:] + 1e-9).all()


@given(geometries)
def test_the_picture_lies_where_the_recipe_says(geometry: Geometry) -> None:
    height, width = geometry.source_hw
    whole = geometry.boxes_to_input(np.array([0.0, 0.0, width, height]))
    corner = np.add(geometry.offset_xy, geometry.resized_hw[::-1])
    np.testing.assert_array_equal(whole[:2], geometry.offset_xy)
    # A whole number of pixels is drawn; Ultralytics maps back by the gain before that rounding.
    assert np.abs(whole[2:] - corner).max() <= 1.0


@given(inputs, st.sampled_from([0.875, 1.0]), st.tuples(sides, sides))
def test_letterbox_holds_the_picture_and_center_crop_fills_the_input(
    size_hw: tuple[int, int], fraction: float, source_hw: tuple[int, int]
) -> None:
    boxed = _geometry("letterbox", size_hw, source_hw)
    assert min(boxed.offset_xy) >= 0
    assert all(np.add(boxed.offset_xy, boxed.resized_hw[::-1]) <= size_hw[::-1])
    cropped = _geometry("center_crop", size_hw, source_hw, crop_fraction=fraction)
    assert max(cropped.offset_xy) <= 0
    assert all(np.add(cropped.offset_xy, cropped.resized_hw[::-1]) >= size_hw[::-1])


def test_points_and_boxes_agree_and_keep_their_dtype() -> None:
    geometry = _geometry("letterbox", (640, 640), (333, 777))
    box = np.array([[1.5, 2.5, 300, 200]], np.float32)
    corners = box.reshape(1, 2, 2)
    assert geometry.boxes_to_input(box).dtype == np.float32
    np.testing.assert_array_equal(geometry.boxes_to_input(box).reshape(1, 2, 2), geometry.points_to_input(corners))
    np.testing.assert_array_equal(geometry.boxes_to_source(box).reshape(1, 2, 2), geometry.points_to_source(corners))
    assert geometry.boxes_to_source(np.zeros((0, 4), np.float32)).shape == (0, 4)


def test_wrong_shapes_and_empty_pictures_are_refused() -> None:
    geometry = _geometry("stretch", (64, 64), (10, 10))
    with pytest.raises(ValueError, match=r"\(\.\.\., 4\)"):
        geometry.boxes_to_source(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="positive"):
        _geometry("stretch", (64, 64), (0, 10))
