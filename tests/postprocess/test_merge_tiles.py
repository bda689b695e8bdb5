"""What two tiles see of one object is one object, and what they see of two is two."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtk.postprocess.mask_runs import merge_runs, place_runs
from vtk.postprocess.masks import Masks
from vtk.postprocess.merge_tiles import merge_tiles
from vtk.postprocess.results import Detections
from vtk.postprocess.rle import pack_counts, paint, unpack_counts

Box = tuple[float, float, float, float]
Found = Sequence[tuple[Box, float, int]]

LEFT, RIGHT = (0, 0, 100, 100), (70, 0, 170, 100)
PICTURE = (170, 100)


def of_tile(tile: tuple[int, int, int, int], found: Found) -> Detections:
    """Boxes in pixels of the picture, as the tile reports them."""
    offset = np.array([tile[0], tile[1]] * 2, np.float32)
    boxes = np.array([box for box, _, _ in found], np.float32).reshape(-1, 4) - offset
    scores = np.array([score for _, score, _ in found], np.float32)
    classes = np.array([class_id for _, _, class_id in found], np.int64)
    return Detections(boxes, scores, classes, (tile[2] - tile[0], tile[3] - tile[1]))


def merged(left: Found, right: Found) -> list[tuple[Box, float, int]]:
    found = merge_tiles([of_tile(LEFT, left), of_tile(RIGHT, right)], [LEFT, RIGHT], PICTURE)
    assert found.resolution_wh == PICTURE
    rows = zip(found.xyxy.tolist(), found.scores.tolist(), found.class_ids.tolist(), strict=True)
    return [(tuple(box), round(score, 4), class_id) for box, score, class_id in rows]


A = (75.0, 20.0, 95.0, 60.0)  # in both tiles, whole
CUT_LEFT, CUT_RIGHT = (30.0, 20.0, 100.0, 60.0), (70.0, 20.0, 140.0, 60.0)  # one object, whole in neither
WHOLE = (50.0, 20.0, 90.0, 60.0)  # whole in the left tile
SCORES = (0.5, 0.6, 0.7, 0.8)
SLIVER = (70.0, 21.0, 90.0, 60.0)  # and what the right one sees of it


@pytest.mark.parametrize(
    ("left", "right", "wanted"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([(A, 0.6, 0)], [(A, 0.8, 0)], [(A, 0.8, 0)], id="whole in both: once, by the better score"),
        pytest.param([(A, 0.6, 0)], [], [(A, 0.6, 0)], id="seen by one only"),
        pytest.param([(A, 0.6, 0)], [(A, 0.5, 1)], [(A, 0.6, 0), (A, 0.5, 1)], id="classes are apart"),
        pytest.param([(WHOLE, 0.5, 0)], [(SLIVER, 0.9, 0)], [(WHOLE, 0.9, 0)], id="the box that is not cut wins"),
        pytest.param(
            [(CUT_LEFT, 0.7, 0)],
            [(CUT_RIGHT, 0.6, 0)],
            [((30.0, 20.0, 140.0, 60.0), 0.7, 0)],
            id="whole in neither: the box around both",
        ),
        pytest.param(
            [((72.0, 30.0, 80.0, 40.0), 0.9, 0)],
            [((70.0, 10.0, 150.0, 90.0), 0.8, 0)],
            [((72.0, 30.0, 80.0, 40.0), 0.9, 0), ((70.0, 10.0, 150.0, 90.0), 0.8, 0)],
            id="a small object before a big one of its class",
        ),
        pytest.param(
            [((10.0, 10.0, 100.0, 90.0), 0.9, 0)],
            [((70.0, 40.0, 76.0, 48.0), 0.4, 0)],
            [((10.0, 10.0, 100.0, 90.0), 0.9, 0), ((70.0, 40.0, 76.0, 48.0), 0.4, 0)],
            id="and a cut one before a big one that is cut as well",
        ),
        pytest.param(
            [((20.0, 10.0, 90.0, 90.0), 0.9, 0)],
            [((70.0, 40.0, 78.0, 50.0), 0.4, 0)],
            [((20.0, 10.0, 90.0, 90.0), 0.9, 0)],
            id="a cut piece of what another tile sees whole is a fragment",
        ),
        pytest.param(
            [(A, 0.9, 0), ((76.0, 21.0, 95.0, 60.0), 0.3, 0)],
            [],
            [(A, 0.9, 0), ((76.0, 21.0, 95.0, 60.0), 0.3, 0)],
            id="within a tile the model's own decision stands",
        ),
        pytest.param(
            [(A, 0.9, 0), ((76.0, 20.0, 96.0, 62.0), 0.7, 0)],
            [((76.0, 20.0, 96.0, 62.0), 0.8, 0)],
            [(A, 0.9, 0), ((76.0, 20.0, 96.0, 62.0), 0.8, 0)],
            id="and of two a tile tells apart, the other's box joins the nearest",
        ),
    ],
)
def test_pairs_of_tiles(left: Found, right: Found, wanted: Found) -> None:
    assert merged(left, right) == list(wanted)


def test_a_tile_over_the_whole_picture_changes_nothing() -> None:
    """Not even the order, the empty boxes, or those that leave the picture."""
    boxes: Found = [((-5.0, 0.0, 20.0, 20.0), 0.2, 1), ((3.0, 3.0, 3.0, 9.0), 0.9, 0), ((3.0, 3.0, 3.0, 9.0), 0.9, 0)]
    found = of_tile((0, 0, 170, 100), boxes)
    assert merge_tiles([found], [(0, 0, 170, 100)], PICTURE) is found


def test_four_tiles_meet_in_one_object() -> None:
    tiles = [(0, 0, 60, 60), (40, 0, 100, 60), (0, 40, 60, 100), (40, 40, 100, 100)]
    whole = (10.0, 15.0, 90.0, 80.0)
    cut = [np.clip(whole, [t[0], t[1]] * 2, [t[2], t[3]] * 2) for t in tiles]
    parts = [of_tile(tile, [(tuple(box), score, 3)]) for tile, box, score in zip(tiles, cut, SCORES, strict=True)]
    found = merge_tiles(parts, tiles, (100, 100))
    assert found.xyxy.tolist() == [list(whole)]
    assert found.scores.tolist() == pytest.approx([SCORES[3]])


@settings(deadline=None)
@given(st.permutations(range(4)), st.integers(0, 2**32))
def test_the_order_of_the_tiles_does_not_matter(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles = [(0, 0, 60, 60), (40, 0, 100, 60), (0, 40, 60, 100), (40, 40, 100, 100)]
    parts = []
    for tile in tiles:
        corner = rng.integers(0, 40, (5, 2))
        boxes = np.concatenate([corner, corner + rng.integers(4, 20, (5, 2))], 1) + np.array([tile[0], tile[1]] * 2)
        scores, classes = rng.random(5), rng.integers(0, 2, 5)
        rows = [(tuple(box), score, class_id) for box, score, class_id in zip(boxes, scores, classes, strict=True)]
        parts.append(of_tile(tile, rows))
    one = merge_tiles(parts, tiles, (100, 100))
    other = merge_tiles([parts[i] for i in order], [tiles[i] for i in order], (100, 100))
    np.testing.assert_array_equal(one.scores, other.scores)
    np.testing.assert_array_equal(one.xyxy, other.xyxy)
    assert (np.diff(one.scores) <= 0).all()


Mask = npt.NDArray[np.bool_]


def counts_of(mask: Mask) -> npt.NDArray[np.int64]:
    flat = mask.T.ravel()
    changes = np.flatnonzero(flat != np.concatenate([[False], flat[:-1]]))
    return np.diff(np.concatenate([[0], changes, [flat.size]]))


def random_mask(rng: np.random.Generator, size_hw: tuple[int, int]) -> Mask:
    if rng.random() < 0.3:
        return np.full(size_hw, rng.random() < 0.5)
    return rng.random(size_hw) < rng.random()


@settings(deadline=None)
@given(seed=st.integers(0, 2**32))
def test_runs_of_tiles_are_those_of_the_painted_picture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 14, 2)
    canvas = np.zeros((height, width), np.bool_)
    runs = []
    for _ in range(rng.integers(1, 5)):
        tile_h, tile_w = rng.integers(1, height + 1), rng.integers(1, width + 1)
        y0, x0 = rng.integers(0, height - tile_h + 1), rng.integers(0, width - tile_w + 1)
        mask = random_mask(rng, (tile_h, tile_w))
        canvas[y0 : y0 + tile_h, x0 : x0 + tile_w] |= mask
        runs.append(place_runs(counts_of(mask), (int(x0), int(y0)), (int(tile_w), int(tile_h)), int(height)))
    merged_counts = merge_runs(runs, canvas.size)
    np.testing.assert_array_equal(paint(merged_counts, (int(height), int(width))), canvas)
    np.testing.assert_array_equal(unpack_counts(pack_counts(merged_counts)), counts_of(canvas))


def test_masks_are_merged_with_their_boxes() -> None:
    """One object cut by the border of two tiles, and one that the left tile sees alone."""
    left, right = np.zeros((100, 100), np.bool_), np.zeros((100, 100), np.bool_)
    left[20:60, 30:], right[20:60, :70] = True, True
    single = np.zeros((100, 100), np.bool_)
    single[70:90, 5:25] = True
    parts = [
        (of_tile(LEFT, [(CUT_LEFT, 0.7, 0), ((5.0, 70.0, 25.0, 90.0), 0.6, 0)]), [left, single]),
        (of_tile(RIGHT, [(CUT_RIGHT, 0.5, 0)]), [right]),
    ]
    found = merge_tiles(
        [
            Detections(it.xyxy, it.scores, it.class_ids, it.resolution_wh, Masks(tuple(map(packed, masks)), (100, 100)))
            for it, masks in parts
        ],
        [LEFT, RIGHT],
        PICTURE,
    )
    assert found.masks is not None
    wanted = np.zeros((2, 100, 170), np.bool_)
    wanted[0, 20:60, 30:140] = True
    wanted[1, 70:90, 5:25] = True
    np.testing.assert_array_equal(found.masks.dense(), wanted)


def packed(mask: Mask) -> bytes:
    return pack_counts(counts_of(mask))
