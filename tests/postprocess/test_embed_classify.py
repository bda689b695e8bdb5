from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from vtk.errors import BackendError, UsageError
from vtk.postprocess.api import postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Classification, Embeddings
from vtk.preprocess.geometry import Geometry

Place = Callable[[tuple[int, int], tuple[int, int]], Geometry]

EMBED = PostRecipe(kind="embed")
CLASSIFY = PostRecipe(kind="classify", top_k=3)


def test_patches_become_a_row_major_grid(stretched: Place) -> None:
    patches = np.arange(24, dtype=np.float32).reshape(6, 4)
    raw = {"cls": np.arange(4, dtype=np.float32), "patches": patches}
    result = postprocess(raw, stretched((48, 80), (32, 48)), EMBED, grid_hw=(2, 3))
    assert isinstance(result, Embeddings)
    assert result.pooled.tolist() == [0, 1, 2, 3]
    assert result.patches is not None
    assert result.patches.shape == (2, 3, 4)
    assert result.patches[1, 0].tolist() == patches[3].tolist()
    assert result.resolution_wh == (80, 48)


def test_a_model_without_patches_gives_none(stretched: Place) -> None:
    result = postprocess({"cls": np.ones(4, np.float32)}, stretched((8, 8), (8, 8)), EMBED)
    assert isinstance(result, Embeddings)
    assert result.patches is None


@pytest.mark.parametrize("grid_hw", [None, (2, 2), (3, 3)])
def test_a_grid_that_does_not_fit_is_refused(grid_hw: tuple[int, int] | None, stretched: Place) -> None:
    raw = {"cls": np.ones(4, np.float32), "patches": np.ones((6, 4), np.float32)}
    with pytest.raises(BackendError, match="6 patches"):
        postprocess(raw, stretched((8, 8), (8, 8)), EMBED, grid_hw=grid_hw)


def test_embeddings_that_are_not_finite_are_refused(stretched: Place) -> None:
    raw = {"cls": np.array([1, np.nan], np.float32)}
    with pytest.raises(BackendError, match="'cls' holds 1 values of 2"):
        postprocess(raw, stretched((8, 8), (8, 8)), EMBED)


def test_embeddings_have_no_classes_to_filter(stretched: Place) -> None:
    with pytest.raises(UsageError, match="no classes"):
        postprocess({"cls": np.ones(4, np.float32)}, stretched((8, 8), (8, 8)), EMBED, class_filter=frozenset({1}))


def test_classification_is_softmax_and_top_k(stretched: Place, rng: np.random.Generator) -> None:
    logits = rng.normal(size=50).astype(np.float32) * 4
    result = postprocess({"logits": logits}, stretched((8, 16), (8, 8)), CLASSIFY)
    scores, class_ids = torch.from_numpy(logits).softmax(dim=0).topk(3)
    assert isinstance(result, Classification)
    assert result.class_ids.tolist() == class_ids.tolist()
    np.testing.assert_allclose(result.scores, scores.numpy(), rtol=1e-5)
    assert result.scores.dtype == np.float32
    assert result.resolution_wh == (16, 8)


def test_classification_ties_large_logits_and_few_classes(stretched: Place) -> None:
    result = postprocess({"logits": np.array([1e4, 1e4], np.float32)}, stretched((8, 8), (8, 8)), CLASSIFY)
    assert isinstance(result, Classification)
    assert result.class_ids.tolist() == [0, 1]
    assert result.scores.tolist() == [0.5, 0.5]


def test_a_class_filter_limits_the_list_and_not_the_softmax(stretched: Place) -> None:
    raw = {"logits": np.log(np.array([0.5, 0.3, 0.2], np.float32))}
    result = postprocess(raw, stretched((8, 8), (8, 8)), CLASSIFY, class_filter=frozenset({2}))
    assert isinstance(result, Classification)
    assert result.class_ids.tolist() == [2]
    np.testing.assert_allclose(result.scores, [0.2], rtol=1e-5)
