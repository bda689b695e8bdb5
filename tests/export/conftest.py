"""A family of one small module, registered alone, so that exports take seconds."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vtk
from vtk.bundle import file_sha256, read_bundle, write_manifest
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Choice, Family, FamilyOptions, ModelSpec, OutputSpec
from vtk.exporters.lint import lint_file
from vtk.exporters.onnx_weights import WEIGHTS_NAME
from vtk.exporters.precision_terms import Precision
from vtk.exporters.to_onnx import GraphFile
from vtk.exporting import ExportListener
from vtk.exporting_precision import put_precision
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe

CLASSES = 3


class TinyNet(nn.Module):
    """A strided convolution, its mean, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 4, stride=4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor]:
        logits: torch.Tensor = self.head(self.conv(images).mean(dim=(2, 3)))
        return (logits,)


class TinyFamily(Family):
    name = "tiny"
    title = "Tiny"
    layouts = ("official",)
    reads = ("class_names",)

    def recognize(self, checkpoint: Checkpoint, options: FamilyOptions) -> str | None:
        return "official" if "conv.weight" in checkpoint.tensors else None

    def infer(self, checkpoint: Checkpoint, layout: str, options: FamilyOptions) -> ModelSpec:
        size = options.size_hw or (8, 12)
        return ModelSpec(
            family="tiny",
            variant="S/4",
            layout=layout,
            task="classify",
            config={"stride": 4},
            input_hw=size,
            recipe=Recipe(size),
            post=PostRecipe("classify", top_k=2),
            outputs=(OutputSpec("logits", "logits", 1e-4),),
            num_classes=CLASSES,
            class_names=options.class_names,
            choices=(Choice("color order", "RGB", "--order", ("RGB", "BGR"), "not in the file", True),),
        )

    def remap(self, checkpoint: Checkpoint, spec: ModelSpec) -> dict[str, Any]:
        return dict(checkpoint.tensors)

    def build(self, spec: ModelSpec) -> nn.Module:
        return TinyNet().eval()

    def wrap(self, module: nn.Module, spec: ModelSpec) -> nn.Module:
        return module.eval()


@pytest.fixture
def tiny_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only family that is registered."""
    monkeypatch.setattr("vtk.exporters.registry.all_families", lambda: (TinyFamily(),))


def save_checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    path = folder / "tiny.safetensors"
    save_file(TinyNet().state_dict(), path)
    return path


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_family: None) -> Path:
    """Weights of the tiny family."""
    return save_checkpoint(tmp_path)


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export for the tests that only read it."""
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vtk.exporters.registry.all_families", lambda: (TinyFamily(),))
        options = FamilyOptions(class_names=("cat", "dog", "bird"))
        return vtk.export(save_checkpoint(folder), folder / "out", batches=[1, 4], size=(8, 8), options=options)


@pytest.fixture
def broken_engine(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """From here on the engine of one batch size is wrong."""
    from vtk.engines.base import Engine
    from vtk.engines.open import open_engine

    def break_batch(batch: int) -> None:
        def open_broken(path: Path, **options: Any) -> Engine:
            engine = open_engine(path, **options)
            right = engine.infer

            def infer(feeds: Any) -> Any:
                return {name: array + (engine.inputs[0].shape[0] == batch) for name, array in right(feeds).items()}

            engine.infer = infer  # type: ignore[method-assign]
            return engine

        monkeypatch.setattr("vtk.predictor.open_engine", open_broken)

    return break_batch


@pytest.fixture(scope="session")
def in_precision() -> Callable[[Path, Precision, Path], Path]:
    """`in_precision(bundle, precision, out)`: a copy whose graph is cast, without tracing the model again."""
    return _in_precision


def _in_precision(root: Path, precision: Precision, out: Path) -> Path:
    """A copy of a float32 bundle with its graph cast, as `vtk export --precision` makes it."""
    shutil.copytree(root, out)
    manifest = read_bundle(out).manifest
    (artifact,) = manifest.artifacts
    weights = out / WEIGHTS_NAME if (out / WEIGHTS_NAME).exists() else None
    opset = int(artifact.builder["opset"])
    path = out / artifact.file
    graph = GraphFile(path, artifact.batch, opset, artifact.sha256, 0, lint_file(path), weights)
    made = put_precision([graph], precision, (), ExportListener())
    changed = replace(
        artifact,
        precision=made.precision,
        sha256=made.graphs[0].sha256,
        builder={**artifact.builder, **made.facts[artifact.file]},
    )
    beside = [*made.twins, *(graph.weights for graph in made.graphs if graph.weights is not None)]
    files = {name: digest for name, digest in manifest.files.items() if name != WEIGHTS_NAME}
    files |= {item.name: file_sha256(item) for item in beside}
    write_manifest(out, replace(manifest, artifacts=(changed,), files=files))
    return out
