from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.ops import box_convert, nms

from vtk.errors import BackendError, UsageError
from vtk.postprocess.api import postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import Geometry

Place = Callable[[tuple[int, int], tuple[int, int]], Geometry]
Floats = npt.NDArray[np.float32]

RECIPE = PostRecipe(kind="yolo", score_threshold=0.25, iou_threshold=0.7, max_detections=300)


def output(*anchors: tuple[list[float], list[float]]) -> dict[str, Floats]:
    """One column per (cxcywh, class scores)."""
    return {"output0": np.array([[*box, *scores] for box, scores in anchors], dtype=np.float32).T}


def detect(
    raw: dict[str, Floats],
    geometry: Geometry,
    recipe: PostRecipe = RECIPE,
    class_filter: frozenset[int] | None = None,
) -> Detections:
    result = postprocess(raw, geometry, recipe, class_filter=class_filter)
    assert isinstance(result, Detections)
    return result


def reference(raw: Floats, recipe: PostRecipe, classes: frozenset[int]) -> tuple[Floats, Floats, list[int]]:
    """What Ultralytics' predict does with one picture, in torch, boxes in pixels of the network input."""
    prediction = torch.from_numpy(raw.T.copy())
    confidence, labels = prediction[:, 4:].max(dim=1)
    wanted = (confidence > recipe.score_threshold) & torch.isin(labels, torch.tensor(sorted(classes)))
    boxes = box_convert(prediction[wanted, :4], "cxcywh", "xyxy")
    confidence, labels = confidence[wanted], labels[wanted]
    # Ultralytics moves each class far away, so that one call of NMS treats them apart.
    kept = nms((boxes.double() + labels[:, None] * 7680.0), confidence.double(), recipe.iou_threshold)
    kept = kept[: recipe.max_detections]
    return boxes[kept].numpy(), confidence[kept].numpy(), labels[kept].tolist()


@pytest.mark.parametrize("classes", [frozenset(range(6)), frozenset({1, 4})])
def test_equals_a_torch_reference_on_random_outputs(
    classes: frozenset[int], stretched: Place, rng: np.random.Generator
) -> None:
    raw = np.empty((10, 2000), dtype=np.float32)
    raw[:2] = rng.uniform(100, 540, (2, 2000))
    raw[2:4] = rng.uniform(10, 200, (2, 2000))
    # Distinct scores: torch orders ties as it likes.
    raw[4:] = rng.permutation(np.linspace(0, 1, 12000, dtype=np.float32)).reshape(6, 2000) ** 4
    recipe = PostRecipe(kind="yolo", score_threshold=0.3, iou_threshold=0.45, max_detections=150)
    result = detect({"output0": raw}, stretched((640, 640), (640, 640)), recipe, classes)
    xyxy, scores, class_ids = reference(raw, recipe, classes)
    assert 50 < len(result) <= 150
    assert result.class_ids.tolist() == class_ids
    np.testing.assert_array_equal(result.scores, scores)
    np.testing.assert_allclose(result.xyxy, xyxy, atol=1e-4)


def test_boxes_map_back_by_the_recipe_case_v38(stretched: Place, letterboxed: Place) -> None:
    raw = output(([400, 360, 160, 80], [0.9]))  # xyxy 320, 320, 480, 400
    for place, expected in ((stretched, [640, 360, 960, 450]), (letterboxed, [640, 360, 960, 520])):
        result = detect(raw, place((720, 1280), (640, 640)))
        np.testing.assert_allclose(result.xyxy, [expected], atol=1e-3)
        assert result.resolution_wh == (1280, 720)


def test_boxes_are_clipped_to_the_picture(letterboxed: Place) -> None:
    # The picture fills rows 140 to 500 of the input: this box reaches over all four edges.
    result = detect(output(([320, 320, 900, 600], [0.9])), letterboxed((720, 1280), (640, 640)))
    assert result.xyxy.tolist() == [[0, 0, 1280, 720]]


def test_best_class_and_strict_threshold(stretched: Place) -> None:
    raw = output(
        ([10, 10, 4, 4], [0.1, 0.25, 0.0]),  # not above 0.25
        ([30, 30, 4, 4], [0.3, 0.26, 0.9]),  # one detection only, of its best class
        ([50, 50, 4, 4], [0.5, 0.5, 0.2]),  # a tie goes to the lower class
    )
    result = detect(raw, stretched((64, 64), (64, 64)))
    assert result.class_ids.tolist() == [2, 0]
    np.testing.assert_allclose(result.scores, [0.9, 0.5])
    np.testing.assert_allclose(result.xyxy, [[28, 28, 32, 32], [48, 48, 52, 52]])


def test_overlap_is_suppressed_within_a_class_only(stretched: Place) -> None:
    raw = output(
        ([30, 30, 20, 20], [0.8, 0.0]),
        ([30, 30, 20, 19], [0.9, 0.0]),
        ([30, 30, 20, 20], [0.0, 0.7]),
    )
    geometry = stretched((64, 64), (64, 64))
    assert detect(raw, geometry).class_ids.tolist() == [0, 1]
    assert detect(raw, geometry).xyxy[0].tolist() == [20, 20.5, 40, 39.5]


def test_class_filter_acts_before_nms_and_the_limit(stretched: Place) -> None:
    raw = output(*[([8 + 12 * i, 10, 8, 8], [0.9, 0.0]) for i in range(4)], ([60, 60, 8, 8], [0.0, 0.3]))
    geometry = stretched((80, 80), (80, 80))
    recipe = PostRecipe(kind="yolo", score_threshold=0.25, max_detections=2)
    assert detect(raw, geometry, recipe).class_ids.tolist() == [0, 0]
    assert detect(raw, geometry, recipe, frozenset({1})).class_ids.tolist() == [1]
    with pytest.raises(UsageError, match=r"\[2\].*2 classes"):
        detect(raw, geometry, recipe, frozenset({2}))


def test_nothing_found_is_a_well_shaped_empty_case_v48(letterboxed: Place) -> None:
    result = detect({"output0": np.zeros((84, 8400), np.float32)}, letterboxed((480, 640), (640, 640)))
    assert (result.xyxy.shape, result.scores.shape, result.class_ids.shape) == ((0, 4), (0,), (0,))
    assert (result.xyxy.dtype, result.scores.dtype, result.class_ids.dtype) == (np.float32, np.float32, np.int64)
    assert result.resolution_wh == (640, 480)


def test_everything_found_is_bounded(stretched: Place) -> None:
    raw = np.zeros((5, 33600), dtype=np.float32)
    side = np.arange(33600)
    raw[0], raw[1] = side % 240 * 4 + 2, side // 240 * 4 + 2
    raw[2:4], raw[4] = 4, 1
    result = detect({"output0": raw}, stretched((960, 960), (960, 960)))
    assert len(result) == 300
    np.testing.assert_allclose(result.xyxy[:2], [[0, 0, 4, 4], [4, 0, 8, 4]])


def test_only_the_best_30000_candidates_enter_nms(stretched: Place) -> None:
    raw = np.tile(np.array([[50], [50], [20], [20], [0.9]], dtype=np.float32), (1, 33600))
    raw[:, 7] = [20, 20, 8, 8, 0.5]
    assert detect({"output0": raw}, stretched((64, 64), (64, 64))).scores.tolist() == [np.float32(0.9)]
    assert len(detect({"output0": raw[:, :30_000]}, stretched((64, 64), (64, 64)))) == 2


def test_bad_outputs_are_named(stretched: Place) -> None:
    geometry = stretched((64, 64), (64, 64))
    overflowed = output(([10, 10, 4, np.inf], [0.9]))
    with pytest.raises(BackendError, match="'output0' holds 1 values of 5 that are NaN or infinite"):
        detect(overflowed, geometry)
    with pytest.raises(BackendError, match="no output 'output0'; it gave nothing"):
        detect({}, geometry)
    with pytest.raises(BackendError, match=r"4 \+ classes.*\(4, 7\)"):
        detect({"output0": np.zeros((4, 7), np.float32)}, geometry)
