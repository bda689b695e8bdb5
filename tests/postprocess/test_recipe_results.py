from __future__ import annotations

import json

import numpy as np
import pytest

from vtk.errors import BundleError
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections


def test_a_recipe_survives_json() -> None:
    recipe = PostRecipe(kind="yolo", score_threshold=0.25, iou_threshold=0.45, max_detections=100)
    assert PostRecipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "softmax"},
        {"score_threshold": 1.5},
        {"iou_threshold": -0.1},
        {"max_detections": 0},
        {"top_k": 2.5},
        {"extra": 1},
    ],
)
def test_a_recipe_that_means_nothing_is_a_bundle_error(change: dict[str, object]) -> None:
    with pytest.raises(BundleError, match="postprocess recipe"):
        PostRecipe.from_json({**PostRecipe(kind="detr").to_json(), **change})


@pytest.mark.parametrize("name", sorted(PostRecipe(kind="yolo").to_json()))
def test_a_field_that_is_missing_is_not_made_up(name: str) -> None:
    data = PostRecipe(kind="yolo").to_json()
    del data[name]
    with pytest.raises(BundleError, match=f"postprocess recipe .* it lacks {name}"):
        PostRecipe.from_json(data)


def test_detections_check_their_shapes_and_select_rows() -> None:
    xyxy = np.arange(12, dtype=np.float32).reshape(3, 4)
    detections = Detections(xyxy, np.array([3, 2, 1], np.float32), np.array([0, 1, 0]), (10, 20))
    assert len(detections) == 3
    chosen = detections.select(detections.class_ids == 0)
    assert chosen.xyxy.tolist() == xyxy[[0, 2]].tolist()
    assert chosen.resolution_wh == (10, 20)
    with pytest.raises(ValueError, match=r"expected xyxy \(N, 4\)"):
        Detections(xyxy, np.ones(2, np.float32), np.zeros(2, np.int64), (10, 20))
