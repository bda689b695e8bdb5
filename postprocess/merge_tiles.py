"""Detections of overlapping tiles as those of the whole picture.

Two tiles see the same object when their boxes agree on what both of them see: of one class, and with a high IoU once
clipped to the tiles' intersection. That holds for an object that one tile sees whole and the other in part, and for one
that no tile sees whole; a small object before a big one of its class fails it. Within one tile the model's own decision
stands: an object takes at most one box of each tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from vtk.postprocess.mask_runs import merge_runs, place_runs
from vtk.postprocess.masks import BoolArray, Masks
from vtk.postprocess.results import Detections, FloatArray, IntArray
from vtk.postprocess.rle import pack_counts, unpack_counts

TileBox: TypeAlias = tuple[int, int, int, int]

AGREEMENT = 0.5
# A box cut off by its tile is a fragment of another tile's box when this much of it lies inside that one.
INSIDE = 0.8
# Boxes of cut objects end at the border of their tile, give or take this share of its side.
BORDER = 0.01


def merge_tiles(found: Sequence[Detections], tiles: Sequence[TileBox], resolution_wh: tuple[int, int]) -> Detections:
    """One result from those of the tiles, by falling score.

    found: per tile, in pixels of the tile. tiles: (x0, y0, x1, y1) in pixels of the picture. An object takes the best
    score of its boxes, and the best box that no tile cuts off, or else the box around all of them; its mask likewise.
    What a single tile over the whole picture has found is returned as it is.
    """
    if len(tiles) == 1 and tiles[0] == (0, 0, *resolution_wh):
        return found[0]
    pool = _gather(found, tiles, resolution_wh)
    groups = sorted(_groups(pool), key=lambda members: (-pool.scores[members].max(), members[0]))
    best = np.array([members[int(pool.scores[members].argmax())] for members in groups], np.int64)
    shown = [_shown(pool, members) for members in groups]
    around = [np.concatenate([pool.xyxy[it, :2].min(axis=0), pool.xyxy[it, 2:].max(axis=0)]) for it in shown]
    masks = None
    if found and all(it.masks is not None for it in found):
        masks = _masks(found, pool, shown, resolution_wh)
    xyxy = np.array(around, np.float32).reshape(-1, 4)
    return Detections(xyxy, pool.scores[best], pool.class_ids[best], resolution_wh, masks)


@dataclass(frozen=True, eq=False)
class _Pool:
    """The N boxes of all tiles in pixels of the picture.

    tile_of: (N,) number of the tile. cut: (N,) whether it ends where its tile ends inside the picture. tiles: (T, 4).
    """

    xyxy: FloatArray
    scores: FloatArray
    class_ids: IntArray
    tile_of: IntArray
    cut: BoolArray
    tiles: IntArray


def _gather(found: Sequence[Detections], tiles: Sequence[TileBox], resolution_wh: tuple[int, int]) -> _Pool:
    corners = np.array(tiles, np.int64).reshape(-1, 4)
    tile_of = np.repeat(np.arange(len(tiles)), [len(it) for it in found])
    offsets = corners[:, [0, 1, 0, 1]].astype(np.float32)
    xyxy = np.concatenate([it.xyxy + offset for it, offset in zip(found, offsets, strict=True)])
    scores = np.concatenate([it.scores for it in found])
    class_ids = np.concatenate([it.class_ids for it in found])
    return _Pool(xyxy, scores, class_ids, tile_of, _cut(xyxy, corners[tile_of], resolution_wh), corners)


def _cut(xyxy: FloatArray, tile: IntArray, resolution_wh: tuple[int, int]) -> BoolArray:
    slack = BORDER * (tile[:, 2:] - tile[:, :2])
    low = (xyxy[:, :2] <= tile[:, :2] + slack) & (tile[:, :2] > 0)
    high = (xyxy[:, 2:] >= tile[:, 2:] - slack) & (tile[:, 2:] < np.array(resolution_wh))
    return np.asarray((low | high).any(axis=1))


def _groups(pool: _Pool) -> list[IntArray]:
    """The boxes of each object. Pairs join the most certain first, and never two boxes of one tile."""
    group_of = list(range(len(pool.scores)))
    members = {index: [index] for index in group_of}
    for one, other in _pairs(pool):
        a, b = group_of[one], group_of[other]
        if a == b or {pool.tile_of[i] for i in members[a]} & {pool.tile_of[i] for i in members[b]}:
            continue
        for index in members[b]:
            group_of[index] = a
        members[a] += members.pop(b)
    return [np.array(sorted(group), np.int64) for group in members.values()]


def _pairs(pool: _Pool) -> list[tuple[int, int]]:
    """Pairs of boxes that may be one object: those that agree by falling IoU, then fragments."""
    pairs: list[tuple[float, int, int]] = []
    inside_of = np.argsort(pool.tile_of, kind="stable")
    starts = np.searchsorted(pool.tile_of[inside_of], np.arange(len(pool.tiles) + 1))
    for one, other, region in _neighbors(pool.tiles):
        a, b = (_seen(pool, inside_of[starts[tile] : starts[tile + 1]], region) for tile in (one, other))
        iou = _overlap(_clip(pool.xyxy[a], region), _clip(pool.xyxy[b], region), of_smaller=False)
        certain = np.where(iou > AGREEMENT, 1 + iou, 0) + _fragments(pool, a, b)
        certain[pool.class_ids[a][:, None] != pool.class_ids[b]] = 0
        pairs += [(-float(certain[i, j]), int(a[i]), int(b[j])) for i, j in np.argwhere(certain > 0)]
    return [(one, other) for _, one, other in sorted(pairs)]


def _neighbors(tiles: IntArray) -> Iterator[tuple[int, int, IntArray]]:
    """Pairs of tiles that overlap, and what both of them see."""
    for one in range(len(tiles) - 1):
        low = np.maximum(tiles[one, :2], tiles[one + 1 :, :2])
        high = np.minimum(tiles[one, 2:], tiles[one + 1 :, 2:])
        for step in np.flatnonzero((low < high).all(axis=1)):
            yield one, one + 1 + int(step), np.concatenate([low[step], high[step]])


def _seen(pool: _Pool, indices: IntArray, region: IntArray) -> IntArray:
    """Those of the boxes that reach into `region`."""
    clipped = _clip(pool.xyxy[indices], region)
    return indices[(clipped[:, 2:] > clipped[:, :2]).all(axis=1)]


def _clip(xyxy: FloatArray, region: IntArray) -> FloatArray:
    low, high = region[[0, 1, 0, 1]].astype(np.float32), region[[2, 3, 2, 3]].astype(np.float32)
    return np.clip(xyxy, low, high)


def _fragments(pool: _Pool, a: IntArray, b: IntArray) -> FloatArray:
    """(A, B) 0..1: how certain it is that one of two boxes, cut by its tile, is a part of the other, which is not."""
    inside = _overlap(pool.xyxy[a], pool.xyxy[b], of_smaller=True)
    area_a, area_b = (_area(pool.xyxy[it]) for it in (a, b))
    a_is_smaller = area_a[:, None] < area_b
    part = np.where(a_is_smaller, pool.cut[a][:, None] & ~pool.cut[b], ~pool.cut[a][:, None] & pool.cut[b])
    return np.where(part & (inside > INSIDE), inside, 0).astype(np.float32)


def _overlap(a: FloatArray, b: FloatArray, *, of_smaller: bool) -> FloatArray:
    """(A, B): the common area as a share of the union, or of the smaller box; 0 for empty boxes."""
    low = np.maximum(a[:, None, :2], b[:, :2])
    high = np.minimum(a[:, None, 2:], b[:, 2:])
    common = np.maximum(high - low, 0).prod(axis=2)
    area_a, area_b = _area(a)[:, None], _area(b)
    whole = np.minimum(area_a, area_b) if of_smaller else area_a + area_b - common
    share: FloatArray = np.divide(common, whole, out=np.zeros_like(common), where=whole > 0)
    return share


def _area(xyxy: FloatArray) -> FloatArray:
    area: FloatArray = np.maximum(xyxy[:, 2:] - xyxy[:, :2], 0).prod(axis=1)
    return area


def _shown(pool: _Pool, members: IntArray) -> IntArray:
    """The boxes that an object is shown by: the best one that is whole, or all of them."""
    whole = members[~pool.cut[members]]
    return whole[[int(pool.scores[whole].argmax())]] if len(whole) else members


def _masks(
    found: Sequence[Detections], pool: _Pool, shown: Sequence[IntArray], resolution_wh: tuple[int, int]
) -> Masks:
    width, height = resolution_wh
    starts = np.searchsorted(pool.tile_of, np.arange(len(pool.tiles)))

    def runs_of(index: int) -> IntArray:
        tile = int(pool.tile_of[index])
        masks = found[tile].masks
        assert masks is not None
        counts = unpack_counts(masks.rle[index - int(starts[tile])])
        corner = (int(pool.tiles[tile, 0]), int(pool.tiles[tile, 1]))
        return place_runs(counts, corner, masks.resolution_wh, height)

    merged = (merge_runs([runs_of(int(index)) for index in members], width * height) for members in shown)
    return Masks(tuple(pack_counts(counts) for counts in merged), resolution_wh)
