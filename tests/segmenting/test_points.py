"""Points on one object: what the decoder is fed, what it costs, which mask is taken, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vtk
from vtk.bundle import read_bundle
from vtk.engines.base import Array, Engine
from vtk.errors import BackendError, UsageError
from vtk.postprocess.points import MASKS, select_mask, stability
from vtk.preprocess.geometry import Geometry, geometry_for
from vtk.preprocess.recipe import Recipe
from vtk.segmenting.clicks import Clicks, point_slots
from vtk.segmenting.predictor import SegmentPredictor, open_segment_predictor
from vtk.segmenting.prompts import Prompt
from vtk.serving.warm_vision import warm_up_prompts

Picture = npt.NDArray[np.uint8]


def stretch(source_hw: tuple[int, int], input_hw: tuple[int, int]) -> Geometry:
    return geometry_for(Recipe(input_hw, mean=(0.5,) * 3, std=(0.5,) * 3), source_hw)


class Counted:
    """An engine that counts its calls and keeps what it was fed last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.calls = 0
        self.fed: Mapping[str, Array] = {}
        self.backend, self.device = engine.backend, engine.device
        self.inputs, self.outputs = engine.inputs, engine.outputs

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.calls += 1
        self.fed = feeds
        return self._engine.infer(feeds)

    def share(self) -> Engine:
        return self

    def close(self) -> None:
        self._engine.close()


@pytest.fixture
def engines() -> list[Counted]:
    """The text encoder, the decoder and the point decoder, once `predictor` is open."""
    return []


@pytest.fixture
def predictor(pointed_bundle: Path, engines: list[Counted]) -> Iterator[SegmentPredictor]:
    def wrap(engine: Engine) -> Engine:
        engines.append(Counted(engine))
        return engines[-1]

    with open_segment_predictor(read_bundle(pointed_bundle), backend="ort", threads=1, wrap=wrap) as opened:
        counted = Counted(opened.images.engines[1])
        opened.images.engines = {1: counted}
        engines.append(counted)
        yield opened


@pytest.fixture
def picture(rng: np.random.Generator) -> Picture:
    return rng.integers(0, 256, (45, 70, 3), np.uint8)


def shares(xy: npt.ArrayLike, picture: Picture) -> npt.NDArray[np.float32]:
    return (np.array(xy, np.float64) / picture.shape[1::-1]).astype(np.float32)


def test_the_point_decoder_is_fed_points_and_a_box_as_corners(
    predictor: SegmentPredictor, engines: list[Counted], prompted: ModuleType, picture: Picture
) -> None:
    clicks = Clicks(((7.0, 9.0), (69.5, 0.0)), (1, 0), (10.0, 5.0, 200.0, 40.0))
    row = predictor.decode_points(predictor.embed(picture), clicks)
    fed = engines[2].fed
    assert set(fed) == {"point_fpn_0", "points", "point_labels"}
    xy = shares([(10, 5), (70, 40), (7, 9), (69.5, 0)], picture)  # the box is cut at the picture's border
    np.testing.assert_allclose(fed["points"][0, :4], xy, atol=1e-6)
    assert fed["point_labels"].tolist() == [[2, 3, 1, 0, -10, -10, -10, -10]]
    place = prompted.place_of(xy, fed["point_labels"][0, :4])
    color = prompted.features_of(predictor.images.prepare(picture).tensor[None])["fpn_0"][0, 0]
    expected = color + prompted.POINT_OFFSETS[:, None, None] + place
    np.testing.assert_allclose(row["point_masks"], expected, atol=1e-5)


def test_a_further_click_costs_one_call_of_the_point_decoder(
    predictor: SegmentPredictor, engines: list[Counted], picture: Picture
) -> None:
    def ask(*points: tuple[float, float]) -> None:
        predictor.segment(predictor.embed(picture), [Prompt(objects=(Clicks(points, (1,) * len(points)),))])

    ask((3, 4))
    assert [engine.calls for engine in engines] == [0, 0, 1, 1]
    ask((3, 4), (5, 6))
    assert [engine.calls for engine in engines] == [0, 0, 2, 1]
    predictor.segment(predictor.embed(picture), [Prompt("cat")])
    assert [engine.calls for engine in engines] == [1, 1, 2, 1]


def test_warming_up_reaches_every_part(predictor: SegmentPredictor, engines: list[Counted]) -> None:
    warm_up_prompts(predictor, [])
    assert [engine.calls for engine in engines] == [1, 1, 1, 1]


def test_a_question_may_end_before_every_object(predictor: SegmentPredictor, picture: Picture) -> None:
    asked: list[int] = []
    objects = Clicks(((3, 4),), (1,)), Clicks(((5, 6),), (1,))
    prompts = [Prompt(objects=objects), None, Prompt("cat")]
    predictor.ask(predictor.embed(picture), prompts, 0.5, lambda: asked.append(0))
    assert len(asked) == 3


def test_the_decoder_of_texts_does_not_see_what_is_for_points(
    predictor: SegmentPredictor, engines: list[Counted], picture: Picture
) -> None:
    predictor.decode(predictor.embed(picture), Prompt("cat"))
    assert {name for name in engines[1].fed if "fpn" in name} == {"fpn_0", "fpn_1", "fpn_2"}


def test_one_point_takes_the_best_of_its_candidates_and_more_the_stable_first(prompted: ModuleType) -> None:
    masks = np.full((4, 8, 8), -3.0, np.float32)
    for index in range(4):
        masks[index, index : index + 2, 2:5] = 3
    outputs = {MASKS: masks, "point_ious": prompted.POINT_IOUS}
    assert (select_mask(outputs, 1).masks[0] == masks[2]).all()  # 0.45 is the best of the last three
    assert (select_mask(outputs, 2).masks[0] == masks[0]).all()
    masks[0, 7] = 0.04  # may or may not be in it
    found = select_mask(outputs, 2, prompt=5)
    assert (found.masks[0] == masks[2]).all()
    assert found.scores.tolist() == pytest.approx([0.45])
    assert found.prompts.tolist() == [5]


def test_stability_is_that_of_the_official_code() -> None:
    """The threshold itself counts as stable: 98 of 100 cells."""
    mask = np.full((10, 20), -1.0, np.float32)
    mask.ravel()[:98], mask.ravel()[98:100] = 1, 0
    assert stability(mask) == 0.98
    assert stability(np.full((3, 3), -1, np.float32)) == 1
    mask.ravel()[100] = 0
    assert stability(mask) < 0.98
    outputs = {MASKS: np.stack([mask] * 4), "point_ious": np.array([0.1, 0.2, 0.3, 0.2], np.float32)}
    assert select_mask(outputs, 2).scores.tolist() == pytest.approx([0.3])


def test_outputs_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(BackendError, match="not of the same masks"):
        select_mask({MASKS: np.zeros((4, 8, 8), np.float32), "point_ious": np.zeros(3, np.float32)}, 1)
    with pytest.raises(BackendError):
        select_mask({MASKS: np.full((4, 8, 8), np.nan, np.float32), "point_ious": np.zeros(4, np.float32)}, 1)


def test_the_answer_is_one_mask_whatever_its_score_with_the_box_around_it(pointed_bundle: Path) -> None:
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[10:30, 15:45] = 255
    with vtk.load(pointed_bundle, backend="ort", threads=1) as model:
        found = model.segment(pixels, points=[(0.0, 0.0)], score_threshold=0.99)
    assert found.scores.tolist() == pytest.approx([0.45])
    assert found.class_ids.tolist() == [0]
    assert found.masks is not None
    rows, columns = np.nonzero(found.masks[0])
    assert found.xyxy.tolist() == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]
    assert 15 * 15 < found.masks.areas[0] < 35 * 25


def test_nothing_is_found_where_the_mask_is_empty(pointed_bundle: Path) -> None:
    black = np.zeros((40, 60, 3), np.uint8)
    with vtk.load(pointed_bundle, backend="ort", threads=1) as model:
        found = model.segment(black, points=[(0, 0)])
        assert len(found) == 0
        assert found.xyxy.shape == (0, 4)
        several = model.segment(black, points=[(60, 40), (0, 0)], point_labels=[1, 1])
    assert len(several) == 1


def test_prompts_of_both_kinds_in_one_call_keep_their_classes(pointed_bundle: Path, picture: Picture) -> None:
    clicks = Clicks(((35.0, 20.0),), (1,)), Clicks(((60.0, 40.0),), (1,))
    with vtk.load(pointed_bundle, backend="ort", threads=1) as model:
        text = model.segment(picture, "cat")
        both = model.segment(picture, [Prompt("dog", objects=clicks), "cat"])
        alone = model.segment(picture, Prompt(objects=clicks))
    assert (both.class_ids == 0).sum() == 2 == len(alone)
    assert (both.class_ids == 1).sum() == len(text) > 0
    of_text = both.select(both.class_ids == 1)
    assert of_text.masks is not None
    assert text.masks is not None
    assert of_text.masks.rle == text.masks.rle


def test_a_box_with_points_is_around_the_object(pointed_bundle: Path, picture: Picture) -> None:
    with vtk.load(pointed_bundle, backend="ort", threads=1) as model:
        one = model.segment(picture, points=[(5, 5)], boxes=[(1, 2, 30, 40)])
        other = model.segment(picture, Prompt(objects=(Clicks(((5, 5),), (1,), (1, 2, 30, 40)),)))
        assert one.masks is not None
        assert other.masks is not None
        assert one.masks.rle == other.masks.rle
        with pytest.raises(UsageError, match="a box is the one around the object"):
            model.segment(picture, points=[(5, 5)], boxes=[(1, 2, 3, 4)] * 2)
        with pytest.raises(UsageError, match="points for one object"):
            model.segment(picture, "cat", points=[(5, 5)])
        with pytest.raises(UsageError, match="pixels of one picture"):
            model.segment([picture], points=[(5, 5)])  # type: ignore[call-overload]


def test_a_bundle_without_the_part_says_so_in_a_line(prompted_bundle: Path, picture: Picture) -> None:
    with vtk.load(prompted_bundle, backend="ort", threads=1) as model, pytest.raises(UsageError) as caught:
        model.segment(picture, points=[(5, 5)])
    assert str(caught.value).startswith("This bundle takes no points: its checkpoint held no tracker")
    assert "point_prompts" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("points", "labels", "told"),
    [
        ([], [], "needs a point on it"),
        ([(1, 2)], [0], "needs a point on it"),
        ([(1, 2)], [1, 1], "1 points and 2 labels"),
        ([(1, 2)], [2], "labeled 1, on the object, or 0"),
        ([(1, 2, 3)], [1], "x, y in pixels"),
        ([(1, float("nan"))], [1], "x, y in pixels"),
        ([(71, 2)], [1], r"\[71.0, 2.0\] lies outside of the picture of 70 x 45"),
        ([(1, -0.5)], [1], "outside of the picture"),
        ([(1, 2)] * 9, [1] * 9, "takes up to 8"),
        ((1, 2), [1], r"x, y in pixels, got 1\. Pass points as a list"),
        (np.array([1, 2]), [1], "Pass points as a list"),
        (np.zeros((1, 1, 2)), [1], "x, y in pixels"),
        (None, [1], "got None. Pass points as a list"),
        (["ab"], [1], "x, y in pixels"),
        ([(1, True)], [1], "x, y in pixels"),
        ([(1, 10**400)], [1], "x, y in pixels"),
        ([(1, 2)], 1, "got 1. Pass labels as a list"),
        ([(1, 2)], "1", "labeled 1, on the object, or 0, beside it; got '1'"),
        ([(1, 2)], [np.array([1, 0])], "labeled 1, on the object, or 0"),
    ],
)
def test_what_is_no_point_is_refused(
    pointed_bundle: Path, picture: Picture, points: Any, labels: Any, told: str
) -> None:
    with vtk.load(pointed_bundle, backend="ort", threads=1) as model, pytest.raises(UsageError, match=told):
        model.segment(picture, points=points, point_labels=labels)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8])
def test_points_labels_and_boxes_may_be_arrays(pointed_bundle: Path, picture: Picture, kind: type[Any]) -> None:
    points, labels, boxes = [(5, 6), (30, 20)], [1, 0], [(1, 2, 30, 40)]
    with vtk.load(pointed_bundle, backend="ort", threads=1) as model:
        wanted = model.segment(picture, points=points, point_labels=labels, boxes=boxes)
        found = model.segment(
            picture, points=np.array(points, kind), point_labels=np.array(labels, kind), boxes=np.array(boxes, kind)
        )
        one = model.segment(picture, points=np.array(points[:1], kind))
        none = model.segment(picture, "cat", points=np.zeros((0, 2), kind), boxes=np.zeros((0, 4), kind))
        assert len(none) == len(model.segment(picture, "cat"))
    assert wanted.masks is not None
    assert found.masks is not None
    assert found.masks.rle == wanted.masks.rle
    assert len(one) == 1


def test_objects_of_a_prompt_are_not_lost_beside_boxes(pointed_bundle: Path, picture: Picture) -> None:
    clicked = Prompt("dog", objects=(Clicks(((5, 5),), (1,)),))
    with (
        vtk.load(pointed_bundle, backend="ort", threads=1) as model,
        pytest.raises(UsageError, match="Boxes belong to one prompt"),
    ):
        model.segment(picture, clicked, boxes=[(1, 2, 30, 40)])


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_whatever_is_given_is_points_or_refused(values: Any) -> None:
    for fields in ({"points": values, "labels": [1]}, {"labels": values}, {"box_xyxy": values}):
        try:
            clicks = Clicks(**fields)
        except UsageError:
            continue
        assert np.isfinite(np.array(clicks.points, np.float64)).all()
        assert clicks.labels.count(0) + clicks.labels.count(1) == len(clicks.labels)


def test_a_box_and_points_share_the_slots() -> None:
    geometry = stretch((10, 10), (20, 20))
    box = (1.0, 1.0, 5.0, 5.0)
    assert (point_slots(Clicks(((1.0, 1.0),) * 6, (1,) * 6, box), geometry, 8).labels >= 0).all()
    with pytest.raises(UsageError, match="9 points were given for one object, a box counting as two"):
        point_slots(Clicks(((1.0, 1.0),) * 7, (1,) * 7, box), geometry, 8)
    with pytest.raises(UsageError, match="lies outside"):
        point_slots(Clicks(box_xyxy=(11.0, 1.0, 12.0, 5.0)), geometry, 8)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.floats(0, 1))
def test_a_place_is_the_same_share_of_picture_and_input(width: int, height: int, x: float, y: float) -> None:
    geometry = stretch((height, width), (64, 96))
    slots = point_slots(Clicks(((x * width, y * height),), (1,)), geometry, 3)
    np.testing.assert_allclose(slots.points[0, 0], (x, y), atol=1e-6)
    assert slots.labels.tolist() == [[1, -10, -10]]
