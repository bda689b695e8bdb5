import json
from dataclasses import replace
from typing import Any

import pytest

from vtk.errors import BundleError
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

RECIPES = [
    Recipe((640, 640)),
    Recipe((256, 320), mean=IMAGENET_MEAN, std=IMAGENET_STD),
    Recipe((640, 640), "letterbox", "cv2_linear", scale_up=False),
    Recipe((518, 518), "center_crop", "pil_bicubic", crop_fraction=0.875),
]


@pytest.mark.parametrize("recipe", RECIPES)
def test_json_keeps_a_recipe(recipe: Recipe) -> None:
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe
    assert again.digest == recipe.digest


@pytest.mark.parametrize(
    "change",
    [
        {"size_hw": (640, 641)},
        {"resize": "letterbox"},
        {"interpolation": "pil_bicubic"},
        {"mean": IMAGENET_MEAN},
        {"std": (1.0, 1.0, 1.001)},
        {"pad_value": 0},
        {"crop_fraction": 0.9},
        {"scale_up": False},
    ],
)
def test_case_v46_every_difference_changes_the_digest(change: dict[str, Any]) -> None:
    recipe = Recipe((640, 640))
    assert replace(recipe, **change).digest != recipe.digest


@pytest.mark.parametrize(
    "change",
    [
        {"size_hw": [640]},
        {"size_hw": [640, 0]},
        {"size_hw": [640.5, 640]},
        {"size_hw": 640},
        {"resize": "squash"},
        {"interpolation": "bilinear"},
        {"mean": 0.5},
        {"mean": [0.5]},
        {"std": [0.2, 0.2]},
        {"std": [0.2, 0.2, 0.0]},
        {"mean": ["0.5", 0.5, 0.5]},
        {"mean": [None, 0.5, 0.5]},
        {"std": [0.2, 0.2, [0.2]]},
        {"pad_value": 1.5},
        {"scale_up": "no"},
        {"pad_value": 256},
        {"crop_fraction": 0},
        {"antialias": True},
    ],
)
def test_case_v46_a_recipe_that_cannot_be_followed_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="preprocess recipe"):
        Recipe.from_json({**Recipe((640, 640)).to_json(), **change})


@pytest.mark.parametrize("name", sorted(Recipe((640, 640)).to_json()))
def test_a_field_that_is_missing_is_not_made_up(name: str) -> None:
    data = Recipe((640, 640), mean=IMAGENET_MEAN).to_json()
    del data[name]
    with pytest.raises(BundleError, match=f"preprocess recipe .* it lacks {name}"):
        Recipe.from_json(data)


def test_with_size_changes_nothing_else() -> None:
    for recipe in RECIPES:
        assert recipe.with_size((32, 64)).with_size(recipe.size_hw) == recipe
        assert recipe.with_size((32, 64)).size_hw == (32, 64)
