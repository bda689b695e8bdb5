from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torchvision.ops import box_convert

from vtk.errors import BackendError, UsageError
from vtk.postprocess.api import postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.geometry import Geometry

Place = Callable[[tuple[int, int], tuple[int, int]], Geometry]
Floats = npt.NDArray[np.float32]

RECIPE = PostRecipe(kind="detr", score_threshold=0.3, max_detections=300)
EVERYTHING = PostRecipe(kind="detr", score_threshold=0.0, max_detections=300)


def outputs(logits: npt.ArrayLike, boxes: npt.ArrayLike | None = None) -> dict[str, Floats]:
    logits = np.asarray(logits, dtype=np.float32)
    values = np.full((len(logits), 4), 0.5) if boxes is None else boxes
    return {"logits": logits, "boxes": np.asarray(values, dtype=np.float32)}


def reference(logits: Floats, boxes: Floats, size_wh: tuple[int, int], k: int) -> tuple[npt.NDArray[np.generic], ...]:
    """The official post-processor in torch: sigmoid, flatten, topk, cxcywh to xyxy, times (w, h, w, h)."""
    scores = torch.from_numpy(logits).sigmoid().flatten()
    values, index = scores.topk(min(k, scores.numel()))
    xyxy = box_convert(torch.from_numpy(boxes), "cxcywh", "xyxy") * torch.tensor([*size_wh, *size_wh])
    return (index % logits.shape[1]).numpy(), values.numpy(), xyxy[index // logits.shape[1]].numpy()


def test_top_k_is_flat_over_queries_and_classes_case_v47(stretched: Place) -> None:
    boxes = [[0.25, 0.25, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]]
    recipe = PostRecipe(kind="detr", score_threshold=0.2, max_detections=3)
    result = postprocess(outputs([[2, 1.9, -9], [-9, -9, -1]], boxes), stretched((100, 200), (64, 64)), recipe)
    assert result.class_ids.tolist() == [0, 1, 2]
    np.testing.assert_allclose(result.scores, [0.8808, 0.8699, 0.2689], atol=5e-5)
    np.testing.assert_allclose(result.xyxy, [[0, 0, 100, 50], [0, 0, 100, 50], [100, 50, 200, 100]], atol=1e-5)
    assert result.resolution_wh == (200, 100)


@pytest.mark.parametrize("name", ["dfine_n", "deim_n"])
def test_equals_the_official_post_processor(name: str, stretched: Place, golden: Path) -> None:
    expected = np.load(golden / f"{name}_post.npz")
    raw = {key: expected[key] for key in ("logits", "boxes")}
    result = postprocess(raw, stretched((720, 1280), (640, 640)), EVERYTHING)
    assert len(result) == 300
    np.testing.assert_allclose(result.scores, expected["post_scores"], atol=1e-6)
    # Neighbors closer than rounding may swap, so rows are compared by label and box.
    order = sorted_rows(result.class_ids, result.xyxy)
    expected_order = sorted_rows(expected["post_labels"], expected["post_boxes"])
    np.testing.assert_array_equal(result.class_ids[order], expected["post_labels"][expected_order])
    np.testing.assert_allclose(result.xyxy[order], expected["post_boxes"][expected_order], atol=1e-3)


def sorted_rows(labels: npt.NDArray[np.int64], boxes: Floats) -> npt.NDArray[np.intp]:
    return np.lexsort((*np.round(boxes, 1).T, labels))


@pytest.mark.parametrize(("num_queries", "num_classes"), [(1, 1), (7, 3), (100, 2), (300, 80)])
def test_equals_a_torch_reference_on_random_outputs(
    num_queries: int, num_classes: int, stretched: Place, rng: np.random.Generator
) -> None:
    # Spaced so that no two scores are equal in float32: torch orders ties as it likes.
    logits = rng.permutation(np.linspace(-4, 4, num_queries * num_classes, dtype=np.float32))
    logits = logits.reshape(num_queries, num_classes)
    boxes = rng.uniform(size=(num_queries, 4)).astype(np.float32)
    result = postprocess(outputs(logits, boxes), stretched((480, 640), (640, 640)), EVERYTHING)
    labels, scores, xyxy = reference(logits, boxes, (640, 480), 300)
    np.testing.assert_array_equal(result.class_ids, labels)
    np.testing.assert_allclose(result.scores, scores, rtol=1e-6)
    np.testing.assert_allclose(result.xyxy, xyxy, atol=1e-3)


def test_threshold_is_strict(stretched: Place) -> None:
    logits = np.zeros((1, 2), dtype=np.float32)
    logits[0, 1] = 1e-6
    half = PostRecipe(kind="detr", score_threshold=0.5)
    assert postprocess(outputs(logits), stretched((8, 8), (8, 8)), half).class_ids.tolist() == [1]


def test_equal_scores_keep_query_and_class_order(stretched: Place) -> None:
    """Few scores and long arrays, where an unstable sort shows; Python's own sort is stable."""
    levels = np.arange(4000) * 7 % 3
    boxes = np.stack([np.arange(1000) / 1000, np.full(1000, 0.5), np.zeros(1000), np.zeros(1000)], axis=1)
    recipe = PostRecipe(kind="detr", score_threshold=0.1, max_detections=2003)
    result = postprocess(outputs(levels.reshape(1000, 4), boxes), stretched((1000, 1000), (8, 8)), recipe)
    expected = sorted(range(4000), key=lambda place: -levels[place])[:2003]
    assert result.class_ids.tolist() == [place % 4 for place in expected]
    assert np.rint(result.xyxy[:, 0]).tolist() == [place // 4 for place in expected]


def test_boxes_are_not_clipped(stretched: Place) -> None:
    result = postprocess(outputs([[5.0]], [[0.0, 0.5, 1.0, 3.0]]), stretched((100, 100), (64, 64)), RECIPE)
    np.testing.assert_allclose(result.xyxy, [[-50, -100, 50, 200]], atol=1e-4)


def test_class_filter_acts_before_the_top_k(stretched: Place) -> None:
    logits = np.full((10, 2), 3.0, dtype=np.float32)
    logits[:, 1] = np.linspace(1, 2, 10)
    recipe = PostRecipe(kind="detr", score_threshold=0.3, max_detections=5)
    geometry = stretched((8, 8), (8, 8))
    assert postprocess(outputs(logits), geometry, recipe).class_ids.tolist() == [0] * 5
    only_ones = postprocess(outputs(logits), geometry, recipe, class_filter=frozenset({1}))
    assert only_ones.class_ids.tolist() == [1] * 5
    assert (np.diff(only_ones.scores) < 0).all()
    assert len(postprocess(outputs(logits), geometry, recipe, class_filter=frozenset())) == 0


def test_class_filter_refuses_unknown_classes(stretched: Place) -> None:
    with pytest.raises(UsageError, match=r"\[-1, 2\].*2 classes"):
        postprocess(outputs(np.zeros((1, 2))), stretched((8, 8), (8, 8)), RECIPE, class_filter=frozenset({2, 1, -1}))


def test_nothing_found_is_a_well_shaped_empty_case_v48(stretched: Place) -> None:
    result = postprocess(outputs(np.full((300, 80), -20.0)), stretched((480, 640), (640, 640)), RECIPE)
    assert len(result) == 0
    assert result.xyxy.shape == (0, 4)
    assert (result.xyxy.dtype, result.scores.dtype, result.class_ids.dtype) == (np.float32, np.float32, np.int64)


def test_extreme_logits_saturate_without_warnings(stretched: Place) -> None:
    result = postprocess(outputs([[200.0, -200.0]]), stretched((8, 8), (8, 8)), RECIPE)
    assert result.scores.tolist() == [1.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["logits", "boxes"])
def test_non_finite_outputs_are_named(bad: float, name: str, stretched: Place) -> None:
    raw = outputs(np.zeros((4, 3)))
    raw[name][2, 1] = bad
    with pytest.raises(BackendError, match=f"'{name}' holds 1 values of .* NaN or infinite"):
        postprocess(raw, stretched((8, 8), (8, 8)), RECIPE)


def test_missing_or_misshapen_outputs_are_named(stretched: Place) -> None:
    geometry = stretched((8, 8), (8, 8))
    with pytest.raises(BackendError, match="no output 'boxes'; it gave logits"):
        postprocess({"logits": np.zeros((3, 2), np.float32)}, geometry, RECIPE)
    with pytest.raises(BackendError, match=r"2 dimensions, its shape is \(1, 3, 2\)"):
        postprocess(outputs(np.zeros((1, 3, 2))), geometry, RECIPE)
    with pytest.raises(BackendError, match=r"must be \(3, 4\).*\(2, 4\)"):
        postprocess(outputs(np.zeros((3, 2)), np.zeros((2, 4))), geometry, RECIPE)


def test_half_precision_outputs_are_accepted(stretched: Place) -> None:
    raw = {key: value.astype(np.float16) for key, value in outputs([[2.0, -3.0]]).items()}
    result = postprocess(raw, stretched((8, 8), (8, 8)), RECIPE)
    assert result.xyxy.dtype == np.float32
    np.testing.assert_allclose(result.scores, [0.8808], atol=1e-4)


def test_toy_pictures_give_the_official_detections(golden: Path, stretched: Place) -> None:
    """Raw outputs of a trained model over 24 pictures, against the official results of score above 0.3."""
    toy = np.load(golden / "toy_post.npz")
    images = zip(toy["logits"], toy["boxes"], toy["size_wh"], strict=True)
    for index, (logits, boxes, (width, height)) in enumerate(images):
        result = postprocess(outputs(logits, boxes), stretched((int(height), int(width)), (128, 128)), RECIPE)
        rows = toy["rows"][toy["rows"][:, 0] == index]
        assert result.class_ids.tolist() == rows[:, 1].astype(int).tolist()
        np.testing.assert_allclose(result.scores, rows[:, 2], atol=1e-5)
        xywh = np.concatenate([result.xyxy[:, :2], result.xyxy[:, 2:] - result.xyxy[:, :2]], axis=1)
        np.testing.assert_allclose(xywh, rows[:, 3:], atol=2e-3)
