"""A predictor that looks at large pictures in overlapping tiles (`vtk.tiling`) and merges what it finds there."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from vtk.engines.base import Array
from vtk.errors import UsageError
from vtk.job_request import OpenModel, RunOptions
from vtk.postprocess.merge_tiles import TileBox, merge_tiles
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.resize import RGBImage
from vtk.slots import Row, Slot
from vtk.tiling import Tiling

TASKS = ("detect", "segment")
# While some infer, others are filled.
SPARE_SLOTS = 2


@dataclass(frozen=True)
class _Merged(Geometry):
    """The geometry of a picture that is its own input, with what its tiles have shown."""

    found: Detections


class TiledPredictor:
    """A predictor that looks at each picture tile by tile; jobs take it in place of the predictor itself.

    All of a picture's work is done when it is placed into a slot: its tiles go through the engine in batches, so that
    memory holds one decoded picture per loading thread and never all of its tiles.
    """

    def __init__(
        self,
        predictor: OpenModel,
        tiling: Tiling,
        *,
        post: PostRecipe | None = None,
        class_filter: frozenset[int] | None = None,
    ) -> None:
        """`post` (None for the bundle's) and `class_filter` hold for each tile. Raises UsageError for other tasks."""
        task = predictor.bundle.manifest.task
        if task not in TASKS:
            raise UsageError(f"Tiles are for bundles of task {' or '.join(TASKS)}; this one is '{task}'.")
        self.predictor = predictor
        self.tiling = tiling
        self.post = post or predictor.bundle.manifest.post
        self.class_filter = class_filter
        self.bundle = predictor.bundle
        self.batch_sizes = predictor.batch_sizes
        self.backend = predictor.backend
        self.device = predictor.device
        self.lanes = predictor.lanes
        self._batch = max(predictor.batch_sizes)
        self._inferring = threading.Semaphore(self.lanes)
        self._slots: SimpleQueue[Slot] = SimpleQueue()
        for _ in range(self.lanes + SPARE_SLOTS):
            self._slots.put(predictor.new_slot(self._batch))

    def new_slot(self, rows: int) -> Slot:
        """A slot whose rows are whole pictures of any size."""
        return _TiledSlot(self)

    def look_at(self, picture: RGBImage) -> Detections:
        """What is on a decoded picture (h, w, 3) uint8. Waits while other threads use all slots."""
        height, width = picture.shape[:2]
        tiles = self.tiling.boxes(width, height)
        found: list[Detections] = []
        slot = self._slots.get()
        try:
            for start in range(0, len(tiles), self._batch):
                found += self._results(slot, picture, tiles[start : start + self._batch])
        finally:
            self._slots.put(slot)
        return merge_tiles(found, tiles, (width, height)).select(slice(self.tiling.max_detections))

    def _results(self, slot: Slot, picture: RGBImage, tiles: Sequence[TileBox]) -> list[Detections]:
        geometries = [
            slot.place(row, np.ascontiguousarray(picture[y0:y1, x0:x1])) for row, (x0, y0, x1, y1) in enumerate(tiles)
        ]
        with self._inferring:
            rows = slot.infer(range(len(tiles)))
        results = [
            self.predictor.finish(row, geometry, class_filter=self.class_filter, post=self.post)
            for row, geometry in zip(rows, geometries, strict=True)
        ]
        return [result for result in results if isinstance(result, Detections)]

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Detections:
        """What was found when the picture was placed. Raises ValueError for another filter or recipe than then."""
        if class_filter not in (None, self.class_filter) or post not in (None, self.post):
            raise ValueError("a tiled predictor filters with what it was made with")
        assert isinstance(geometry, _Merged)
        return geometry.found

    def __call__(self, pictures: Sequence[RGBImage]) -> list[Detections]:
        """Results of decoded pictures, in their order."""
        return [self.look_at(picture) for picture in pictures]


class _TiledSlot:
    def __init__(self, model: TiledPredictor) -> None:
        self._model = model

    def place(self, row: int, picture: RGBImage) -> Geometry:
        size_hw = (picture.shape[0], picture.shape[1])
        return _Merged(size_hw, size_hw, size_hw, (1.0, 1.0), (0, 0), self._model.look_at(picture))

    def infer(self, rows: Sequence[int]) -> list[Row]:
        return [{} for _ in rows]


def as_asked(model: OpenModel, options: RunOptions) -> OpenModel:
    """The model itself, or in tiles if the options say so. Raises UsageError for what tiles cannot be asked."""
    if options.tiling is None:
        return model
    if options.prompts is not None and options.prompts.by_picture:
        flag = "--boxes" if options.prompts.boxes_sha256 is not None else "--points"
        raise UsageError("Places in a picture are those of the whole of it.", hint=f"Leave out {flag} or --tile.")
    return TiledPredictor(model, options.tiling, post=options.post, class_filter=options.class_filter)
