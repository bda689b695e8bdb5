"""A bundle whose model is a small function, so that every kind of fault can be put into its engine."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from vtk.assets import sample_pictures
from vtk.bundle import Artifact, Label, Manifest, file_sha256, write_manifest
from vtk.engines.base import Array
from vtk.engines.fake import FakeEngine
from vtk.exporters.family import OutputSpec
from vtk.golden import Golden, GoldenPicture, pixels_sha256, write_golden
from vtk.postprocess.api import postprocess
from vtk.postprocess.detr import BOXES, LOGITS
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode
from vtk.preprocess.recipe import Recipe

SIZE_HW = (8, 8)
NUM_QUERIES = 6
NUM_CLASSES = 3
Images = npt.NDArray[np.float32]
Model = Callable[[Images], dict[str, Array]]
Fault = Callable[[int, dict[str, Array]], Mapping[str, Array]]


def _detector(images: Images) -> dict[str, Array]:
    """Six queries whose boxes and scores follow from the picture."""
    weights = np.random.default_rng(0).normal(size=(3 * SIZE_HW[0] * SIZE_HW[1], NUM_QUERIES * (NUM_CLASSES + 4)))
    flat = images.reshape(len(images), -1) @ weights.astype(np.float32) / 4
    split = NUM_QUERIES * NUM_CLASSES
    boxes = 0.5 + 0.2 * np.tanh(flat[:, split:].reshape(-1, NUM_QUERIES, 4))
    return {LOGITS: flat[:, :split].reshape(-1, NUM_QUERIES, NUM_CLASSES), BOXES: boxes}


def _embedder(images: Images) -> dict[str, Array]:
    """Four numbers per picture and four patches of two."""
    weights = np.random.default_rng(1).normal(size=(3 * SIZE_HW[0] * SIZE_HW[1], 12)).astype(np.float32)
    flat = images.reshape(len(images), -1) @ weights
    return {"cls": flat[:, :4], "patches": flat[:, 4:].reshape(-1, 4, 2)}


def _classifier(images: Images) -> dict[str, Array]:
    """Three classes; pictures differ by less than the limit on logits."""
    means = images.mean(axis=(2, 3))
    return {"logits": 1e-4 * (means - means.mean(axis=1, keepdims=True))}


@dataclass(frozen=True)
class Kind:
    model: Model
    post: PostRecipe
    outputs: tuple[OutputSpec, ...]


KINDS = {
    "detect": Kind(
        _detector,
        PostRecipe("detr", score_threshold=0.4),
        (OutputSpec(LOGITS, "logits", 1e-3), OutputSpec(BOXES, "boxes_cxcywh", 1e-4)),
    ),
    "embed": Kind(
        _embedder, PostRecipe("embed"), (OutputSpec("cls", "embedding", 1e-4), OutputSpec("patches", "tokens", 1e-4))
    ),
    "classify": Kind(_classifier, PostRecipe("classify", top_k=3), (OutputSpec("logits", "logits", 1e-3),)),
}


def manifest_for(task: Any, batches: tuple[int, ...]) -> Manifest:
    kind = KINDS[task]
    return Manifest(
        family="tiny",
        variant="S",
        layout="official",
        task=task,
        config={},
        source={"name": "tiny.pth", "weights": "flat", "tensor_digest": "d" * 64},
        recipe=Recipe(SIZE_HW),
        post=kind.post,
        labels=() if task == "embed" else tuple(Label(index, f"class_{index}") for index in range(NUM_CLASSES)),
        outputs=tuple(asdict(output) for output in kind.outputs),
        choices=(),
        artifacts=tuple(Artifact("onnx", "fp32", batch, f"model.b{batch}.onnx", "", {}, "any") for batch in batches),
        files={},
        verify={},
        vtk_version="0",
        grid_hw=(2, 2) if task == "embed" else None,
    )


def golden_for(manifest: Manifest, model: Model, max_difference: float) -> Golden:
    pictures = []
    for path in sample_pictures():
        pixels = decode(path)
        prepared = preprocess(pixels, manifest.recipe)
        outputs = {name: array[0] for name, array in model(prepared.tensor[None]).items()}
        result = postprocess(outputs, prepared.geometry, manifest.post, grid_hw=manifest.grid_hw)
        digest = pixels_sha256(pixels)
        pictures.append(GoldenPicture(path.name, path.read_bytes(), digest, prepared.tensor, outputs, result))
    return Golden(tuple(pictures), max_difference, manifest.recipe.digest, {})


@pytest.fixture
def detector() -> Model:
    """The function behind the task detect."""
    return _detector


@pytest.fixture
def make_bundle(tmp_path: Path) -> Callable[..., Path]:
    """Writes a whole bundle for a task: detect, embed or classify."""

    def make(
        task: str = "detect",
        batches: tuple[int, ...] = (1, 2, 8),
        *,
        max_difference: float = 0.0,
        model: Model | None = None,
    ) -> Path:
        root = tmp_path / f"{task}-bundle"
        root.mkdir()
        manifest = manifest_for(task, batches)
        files = write_golden(root, golden_for(manifest, model or KINDS[task].model, max_difference))
        artifacts = []
        for artifact in manifest.artifacts:
            (root / artifact.file).write_text(artifact.file)
            artifacts.append(replace(artifact, sha256=file_sha256(root / artifact.file)))
        write_manifest(root, replace(manifest, artifacts=tuple(artifacts), files=files))
        return root

    return make


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From here on bundles open with the task's function, its outputs changed by `fault(batch, outputs)`."""

    def use(task: str = "detect", fault: Fault = lambda batch, outputs: outputs, *, model: Model | None = None) -> None:
        function = model or KINDS[task].model

        def open_fake(path: Path, **_: object) -> FakeEngine:
            batch = int(path.stem.removeprefix("model.b"))
            return FakeEngine(lambda images: fault(batch, function(images)), batch=batch, size_hw=SIZE_HW)

        monkeypatch.setattr("vtk.predictor.open_engine", open_fake)

    return use
