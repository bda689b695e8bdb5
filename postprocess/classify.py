"""Classifiers: softmax and the best classes."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from vtk.postprocess.raw import RawOutputs, class_mask, take
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Classification

LOGITS = "logits"


def classification(
    outputs: RawOutputs, resolution_wh: tuple[int, int], recipe: PostRecipe, class_filter: frozenset[int] | None
) -> Classification:
    """`logits` (C,) to the `top_k` classes by falling probability; equal ones by index.

    The softmax runs over all classes; a class filter only limits which of them are listed.
    """
    probabilities = softmax(take(outputs, LOGITS, ndim=1).astype(np.float64)).astype(np.float32)
    listed = np.flatnonzero(class_mask(len(probabilities), class_filter))
    best = listed[np.argsort(-probabilities[listed], kind="stable")[: recipe.top_k]]
    return Classification(best.astype(np.int64), probabilities[best], resolution_wh)
