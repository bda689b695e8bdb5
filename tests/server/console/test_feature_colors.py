import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vtk.server.console.feature_colors import feature_colors, png_of, principal_components


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(4, 60), width=st.integers(3, 40))
def test_the_components_are_those_of_a_full_decomposition(seed: int, rows: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.standard_normal((rows, min(rows, width))))[0]
    right = np.linalg.qr(rng.standard_normal((width, min(rows, width))))[0]
    data = (left * 0.6 ** np.arange(min(rows, width))) @ right.T
    centered = data - data.mean(axis=0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    scores = principal_components(data)
    np.testing.assert_allclose(np.linalg.norm(scores, axis=0), s[:3], rtol=1e-3, atol=1e-9)
    for index in range(min(3, rows - 1)):
        away = np.delete(s, index)
        if s[index] > 1e-6 and np.abs(away - s[index]).min() > 0.1 * s[index]:
            cosine = abs(scores[:, index] @ u[:, index]) / s[index]
            assert cosine > 0.999


def test_the_signs_do_not_flip_between_calls_and_the_largest_weight_is_positive() -> None:
    rng = np.random.default_rng(3)
    data = rng.standard_normal((50, 12)) * (2.0 ** -np.arange(12))
    scores = principal_components(data)
    np.testing.assert_array_equal(scores, principal_components(data))
    np.testing.assert_allclose(np.abs(principal_components(-data)), np.abs(scores), atol=1e-9)
    # Axes that are coordinates: a component grows with its own coordinate.
    for index in range(3):
        assert np.corrcoef(scores[:, index], data[:, index])[0, 1] > 0.9


def test_a_gradient_of_one_feature_is_a_gradient_of_red_and_the_rest_is_gray() -> None:
    ramp = np.linspace(0, 1, 100, dtype=np.float32).reshape(10, 10)
    direction = np.random.default_rng(0).standard_normal(16).astype(np.float32)
    direction[5] = 4.0
    (colors,) = feature_colors([ramp[..., None] * direction])
    assert colors.shape == (10, 10, 3)
    expected = np.clip((ramp - 0.01) / 0.98, 0, 1) * 255
    np.testing.assert_allclose(colors[..., 0], expected, atol=1)
    assert set(np.unique(colors[..., 1:])) == {128}


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-30, 1e20])
def test_one_feature_everywhere_is_one_gray(value: float) -> None:
    (colors,) = feature_colors([np.full((3, 4, 8), value, np.float32)])
    assert set(np.unique(colors)) == {128}


def test_grids_share_a_basis_and_keep_their_order() -> None:
    rng = np.random.default_rng(9)
    first, second = (rng.standard_normal((4, 5, 6)).astype(np.float32) for _ in range(2))
    a, b, again = feature_colors([first, second, first])
    np.testing.assert_array_equal(a, again)
    assert not np.array_equal(a, b)
    # The same patch is the same color, wherever it is.
    moved = second.copy()
    moved[0, 0] = first[3, 2]
    a, b = feature_colors([first, moved])
    np.testing.assert_array_equal(b[0, 0], a[3, 2])


def test_features_of_two_numbers_have_two_colors() -> None:
    rng = np.random.default_rng(1)
    (colors,) = feature_colors([rng.standard_normal((4, 4, 2)).astype(np.float32)])
    assert len(np.unique(colors[..., 0])) > 4
    assert set(np.unique(colors[..., 2])) == {128}


def test_the_png_holds_the_grids_below_each_other() -> None:
    rng = np.random.default_rng(2)
    grids = [rng.integers(0, 256, (3, 5, 3), np.uint8) for _ in range(2)]
    picture = np.asarray(Image.open(io.BytesIO(png_of(grids))))
    np.testing.assert_array_equal(picture, np.concatenate(grids))
