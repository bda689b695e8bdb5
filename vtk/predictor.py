"""From pictures to results with one bundle: the same object behind `run`, `verify`, `serve` and the Python API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np
import numpy.typing as npt

from vtk.batching import plan_batches
from vtk.bundle import Bundle, Manifest
from vtk.engines.base import Array, Engine
from vtk.engines.open import open_engine
from vtk.engines.select import select_artifacts
from vtk.errors import BackendError
from vtk.postprocess.api import num_classes, postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.apply import preprocess
from vtk.slots import Slot, open_slot

if TYPE_CHECKING:
    from vtk.postprocess.results import Result
    from vtk.preprocess.apply import Preprocessed
    from vtk.preprocess.geometry import Geometry
    from vtk.preprocess.resize import RGBImage

Row = dict[str, Array]


class Predictor:
    """An open bundle. `prepare` and `finish` may run in any thread; `infer` belongs to one thread at a time."""

    def __init__(self, bundle: Bundle, engines: Mapping[int, Engine], *, lanes: int = 1) -> None:
        """`engines` by batch size. Raises BackendError when an engine does not fit its batch size or the recipe."""
        if not engines:
            raise BackendError("A predictor needs at least one engine.")
        for batch, engine in engines.items():
            _check_input(engine, (batch, 3, *bundle.manifest.recipe.size_hw))
            _check_labels(engine, bundle.manifest)
        self.bundle = bundle
        self.lanes = lanes
        self.engines = dict(sorted(engines.items()))
        self.batch_sizes = tuple(self.engines)
        first = self.engines[self.batch_sizes[0]]
        self.backend = first.backend
        self.device = first.device

    def new_slot(self, rows: int) -> Slot:
        """Memory for batches of `rows` pictures; as many slots as there are `lanes` may infer at the same time.

        A slot has handles of its own on the engines, which are closed when it is gone.
        """
        engines = {batch: engine.share() for batch, engine in self.engines.items()}
        slot = open_slot(self.bundle.manifest.recipe, engines, rows)
        handles = tuple(handle for batch, handle in engines.items() if handle is not self.engines[batch])
        finalize(slot, _close_all, handles)
        return slot

    def prepare(self, picture: RGBImage) -> Preprocessed:
        """`tensor` (3, H, W) float32 and `geometry` of a decoded picture (h, w, 3) uint8."""
        return preprocess(picture, self.bundle.manifest.recipe)

    def infer(self, tensors: Sequence[npt.NDArray[np.float32]]) -> list[Row]:
        """Raw outputs of any number of tensors (3, H, W), one dictionary each, without batch dimension."""
        rows: list[Row] = []
        for batch in plan_batches(len(tensors), self.batch_sizes):
            rows.extend(self.infer_batch(batch, tensors[len(rows) : len(rows) + batch]))
        return rows

    def infer_batch(self, batch: int, tensors: Sequence[npt.NDArray[np.float32]]) -> list[Row]:
        """One call of the engine of that batch size; missing rows are zeros and are dropped again."""
        engine = self.engines[batch]
        images = np.zeros(engine.inputs[0].shape, np.float32)
        for row, tensor in enumerate(tensors):
            images[row] = tensor
        outputs = engine.infer({engine.inputs[0].name: images})
        return [{name: array[row] for name, array in outputs.items()} for row in range(len(tensors))]

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Result:
        """The result of one row in pixels of its picture; `post` replaces the bundle's recipe."""
        manifest = self.bundle.manifest
        recipe = post or manifest.post
        return postprocess(row, geometry, recipe, class_filter=class_filter, grid_hw=manifest.grid_hw)

    def __call__(self, pictures: Sequence[RGBImage]) -> list[Result]:
        """Results of decoded pictures, in their order."""
        prepared = [self.prepare(picture) for picture in pictures]
        rows = self.infer([item.tensor for item in prepared])
        return [self.finish(row, item.geometry) for row, item in zip(rows, prepared, strict=True)]

    def close(self) -> None:
        """Free the engines; the predictor is unusable afterwards."""
        for engine in self.engines.values():
            engine.close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_all(engines: Iterable[Engine]) -> None:
    for engine in engines:
        engine.close()


def open_predictor(
    bundle: Bundle,
    *,
    backend: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    batches: Sequence[int] | None = None,
    lanes: int = 1,
) -> Predictor:
    """Open the bundle's engines, or those of `batches` only; slots of the predictor infer on `lanes` * `threads` cores.

    Raises UsageError for a batch size that the bundle does not hold, and the errors of `open_engine`.
    """
    engines: dict[int, Engine] = {}
    try:
        for chosen, artifact in select_artifacts(bundle, backend=backend, device=device, batches=batches):
            path = bundle.path(artifact.file)
            engines[artifact.batch] = open_engine(path, backend=chosen, device=device, threads=threads, lanes=lanes)
        return Predictor(bundle, engines, lanes=lanes)
    except BaseException:
        for engine in engines.values():
            engine.close()
        raise


def _check_input(engine: Engine, shape: tuple[int, ...]) -> None:
    found = [(spec.shape, spec.dtype) for spec in engine.inputs]
    if found != [(shape, "float32")]:
        raise BackendError(
            f"The engine takes {found}; the bundle's recipe makes float32 {shape}.",
            hint="The graph and the manifest do not belong together: export again.",
        )


def _check_labels(engine: Engine, manifest: Manifest) -> None:
    classes = num_classes(manifest.post, {spec.name: spec.shape for spec in engine.outputs})
    if classes not in (None, len(manifest.labels)):
        raise BackendError(
            f"The engine tells {classes} classes apart; the bundle has {len(manifest.labels)} labels.",
            hint="The graph and the manifest do not belong together: export again.",
        )
