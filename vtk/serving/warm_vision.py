"""Before a bundle is ready: calls that take turns with those that serve, and pictures of the sizes that come most."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from vtk.engines.base import Array, Engine
from vtk.predictor import Predictor
from vtk.preprocess.resize import RGBImage
from vtk.segmenting.clicks import Clicks
from vtk.segmenting.places import ON
from vtk.segmenting.predictor import SegmentPredictor
from vtk.segmenting.prompts import VISUAL, Prompt
from vtk.serving.arbiter import Arbiter

MAX_REPLAYED_SIZES = 8
MAX_REPLAYED_PIXELS = 1 << 24


class PoliteEngine:
    """An engine that waits for its turn on the device, so that proving a new model does not stall those that serve."""

    def __init__(self, engine: Engine, arbiter: Arbiter) -> None:
        self._engine = engine
        self._arbiter = arbiter
        self._seconds = 0.0
        self.backend = engine.backend
        self.device = engine.device
        self.inputs = engine.inputs
        self.outputs = engine.outputs

    def infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        with self._arbiter.vision_turn(seconds=self._seconds):
            started = time.perf_counter()
            outputs = self._engine.infer(feeds)
            self._seconds = time.perf_counter() - started
        return outputs

    def share(self) -> PoliteEngine:
        return PoliteEngine(self._engine.share(), self._arbiter)

    def close(self) -> None:
        self._engine.close()


def polite(predictor: Predictor, arbiter: Arbiter) -> Predictor:
    """The same predictor, taking turns; the engines belong to the original."""
    return Predictor(predictor.bundle, {n: PoliteEngine(engine, arbiter) for n, engine in predictor.engines.items()})


def warm_up_vision(predictor: Predictor, sizes_wh: Sequence[tuple[int, int]]) -> None:
    """Carry blank pictures of these sizes from pixels to result; the batcher then runs every batch size itself."""
    for picture in _blank_pictures(predictor, sizes_wh):
        prepared = predictor.prepare(picture)
        (row,) = predictor.infer([prepared.tensor])
        predictor.finish(row, prepared.geometry)


def warm_up_prompts(parts: SegmentPredictor, sizes_wh: Sequence[tuple[int, int]]) -> None:
    """The same with a prompt on each picture, and a point where the model takes any; the picture's own size alone
    would not show what large masks take.
    """
    point = Prompt(objects=(Clicks(((0.0, 0.0),), (ON,)),))
    prompts = [Prompt(VISUAL), *([point] if parts.max_points else [])]
    for picture in _blank_pictures(parts.images, sizes_wh):
        parts.segment(parts.embed(picture), prompts)


def _blank_pictures(predictor: Predictor, sizes_wh: Sequence[tuple[int, int]]) -> Iterator[RGBImage]:
    height, width = predictor.bundle.manifest.recipe.size_hw
    usual = [(w, h) for w, h in sizes_wh if 0 < w * h <= MAX_REPLAYED_PIXELS]
    for w, h in [(width, height), *usual[:MAX_REPLAYED_SIZES]]:
        yield np.zeros((h, w, 3), np.uint8)
