"""A model that needs no engine, for the tests of what surrounds one; as a script, a job that can be killed.

It finds one box per picture of which the tensor's mean is the score, so every result depends on its own picture.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vtk.bundle import Artifact, Bundle, Label, Manifest, Task
from vtk.engines.base import Array
from vtk.inputs import expand
from vtk.job_request import RunOptions
from vtk.postprocess.masks import Masks
from vtk.postprocess.recipe import PostKind, PostRecipe
from vtk.postprocess.results import Classification, Detections, Embeddings, Result
from vtk.postprocess.rle import pack_counts
from vtk.preprocess.apply import Preprocessed, preprocess
from vtk.preprocess.decode import DecodeOptions
from vtk.preprocess.geometry import Geometry
from vtk.preprocess.recipe import Recipe
from vtk.run import run_job
from vtk.slots import Slot

SIZE_HW = (8, 8)
DIM = 4
GRID_HW = (2, 3)
LABELS = (Label(1, "cat"), Label(7, "dog"), Label(9, "hot air balloon"))


def stub_manifest(task: Task) -> Manifest:
    kinds: dict[Task, PostKind] = {"detect": "detr", "embed": "embed", "classify": "classify", "segment": "segment"}
    return Manifest(
        family="stub",
        variant="stub-s",
        layout="stub",
        task=task,
        config={},
        source={"name": "stub.pth", "sha256": "0" * 64, "tensor_digest": "d" * 64},
        recipe=Recipe(SIZE_HW),
        post=PostRecipe(kinds[task], score_threshold=0.0),
        labels=() if task == "embed" else LABELS,
        outputs=(),
        choices=(),
        artifacts=(Artifact("onnx", "fp32", 4, "model.b4.onnx", "a" * 64, {}, "any"),),
        files={},
        verify={},
        lint=(),
        vtk_version="0",
        grid_hw=GRID_HW if task == "embed" else None,
    )


class TensorSlot:
    """Tensors of the stub, which batches them itself."""

    def __init__(self, model: "StubModel") -> None:
        self._model = model
        self._tensors: dict[int, npt.NDArray[np.float32]] = {}

    def place(self, row: int, picture: npt.NDArray[np.uint8]) -> Geometry:
        prepared = self._model.prepare(picture)
        self._tensors[row] = prepared.tensor
        return prepared.geometry

    def infer(self, rows: Sequence[int]) -> list[dict[str, Array]]:
        return self._model.infer([self._tensors[row] for row in rows])


class StubModel:
    """Satisfies `vtk.run.OpenModel`. `calls` holds the size of every batch."""

    batch_sizes = (4,)
    backend = "stub"
    device = "cpu"
    lanes = 1

    def __init__(self, task: Task = "detect", *, delay: float = 0.0) -> None:
        self.bundle = Bundle(Path("stub-bundle"), stub_manifest(task))
        self.delay = delay
        self.calls: list[int] = []

    def new_slot(self, rows: int) -> Slot:
        return TensorSlot(self)

    def prepare(self, picture: npt.NDArray[np.uint8]) -> Preprocessed:
        return preprocess(picture, self.bundle.manifest.recipe)

    def infer(self, tensors: Sequence[npt.NDArray[np.float32]]) -> list[dict[str, Array]]:
        self.calls.append(len(tensors))
        time.sleep(self.delay * len(tensors))
        return [{"mean": np.float32(tensor.mean())[None]} for tensor in tensors]

    def finish(
        self,
        row: Mapping[str, Array],
        geometry: Geometry,
        *,
        class_filter: frozenset[int] | None = None,
        post: PostRecipe | None = None,
    ) -> Result:
        height, width = geometry.source_hw
        score = row["mean"].astype(np.float32)
        if self.bundle.manifest.task == "embed":
            patches = np.arange(np.prod(GRID_HW) * DIM, dtype=np.float32).reshape(*GRID_HW, DIM) + score
            return Embeddings(np.full(DIM, score[0], np.float32), patches, (width, height))
        classes = np.array([1], np.int64)
        if self.bundle.manifest.task == "classify":
            return Classification(classes, score, (width, height))
        box = np.array([[-1.5, height / 4, width / 2, height + 2]], np.float32)
        masks = None
        if self.bundle.manifest.task == "segment":
            mask = np.zeros((height, width), np.bool_)
            mask[height // 4 :, : width // 2 + round(score[0] * 10)] = True
            masks = Masks((pack_mask(mask),), (width, height))
        found = Detections(box, score, classes, (width, height), masks)
        keep = score > (post or self.bundle.manifest.post).score_threshold
        return found.select(keep if class_filter is None else keep & np.isin(classes, list(class_filter)))


def pack_mask(mask: npt.NDArray[np.bool_]) -> bytes:
    """Run lengths down the columns, as COCO packs them."""
    flat = np.concatenate([[False], mask.T.ravel()])
    edges = np.flatnonzero(flat[1:] != flat[:-1])
    return pack_counts(np.diff(np.concatenate([[0], edges, [mask.size]])))


def stub_options(formats: Sequence[str] = ("jsonl",), *, task: Task = "detect") -> RunOptions:
    post = stub_manifest(task).post
    decode = DecodeOptions(max_pixels=1_000_000)
    return RunOptions(formats=tuple(formats), post=post, decode=decode, batch=4, workers=3)


def main(task: Task, source: str, out: str, delay: str, formats: str) -> None:
    options = replace(stub_options(formats.split(","), task=task), batch=2, patches=task == "embed")
    plan = expand([source], exclude=Path(out))
    model = StubModel(task, delay=float(delay))
    run_job(model, plan, Path(out), options, lambda done, failed: None)
    print(sum(model.calls))


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]
