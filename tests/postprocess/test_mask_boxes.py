"""The box around a mask, from its run lengths alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vtk.postprocess.masks import Masks
from vtk.postprocess.rle import pack_counts


def masks_of(mask: npt.NDArray[np.bool_]) -> Masks:
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat]).astype(np.int8)))
    counts = np.diff(np.concatenate([[0], edges, [flat.size]]))
    return Masks((pack_counts(counts),), mask.shape[::-1])


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
@example(np.ones((3, 4), np.bool_))
@example(np.zeros((3, 4), np.bool_))
@example(np.eye(5, dtype=np.bool_))
def test_it_encloses_the_pixels_that_are_set(mask: npt.NDArray[np.bool_]) -> None:
    masks = masks_of(mask)
    assert (masks[0] == mask).all()
    rows, columns = np.nonzero(mask)
    expected = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] if len(rows) else [0, 0, 0, 0]
    assert masks.boxes.tolist() == [expected]


def test_there_may_be_no_mask() -> None:
    assert Masks((), (4, 3)).boxes.shape == (0, 4)
