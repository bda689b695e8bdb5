"""Real bundles that take milliseconds: a classifier that tells the mean color of a picture, plus a bias."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from vtk.bundle import Artifact, Label, Manifest, file_sha256, write_manifest
from vtk.golden import Golden, GoldenPicture, pixels_sha256, write_golden
from vtk.postprocess.api import postprocess
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.apply import preprocess
from vtk.preprocess.recipe import Recipe

SIZE_HW = (8, 8)
RECIPE, POST = Recipe(SIZE_HW), PostRecipe("classify", top_k=3)
BATCHES = (1, 2)


def save_graph(path: Path, batch: int, bias: float) -> None:
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, (batch, 3, *SIZE_HW))
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (batch, 3))
    constant = helper.make_tensor("bias", TensorProto.FLOAT, (1,), [bias])
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Add", ["mean", "bias"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "mean_color", [images], [logits], [constant])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), path)


def golden_picture(seed: int, bias: float) -> GoldenPicture:
    pixels = np.random.default_rng(seed).integers(0, 256, (*SIZE_HW, 3), np.uint8)
    pixels[..., seed % 3] = 255
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "png")
    prepared = preprocess(pixels, RECIPE)
    outputs = {"logits": prepared.tensor.mean(axis=(1, 2)) + np.float32(bias)}
    result = postprocess(outputs, prepared.geometry, POST)
    return GoldenPicture(f"{seed}.png", data.getvalue(), pixels_sha256(pixels), prepared.tensor, outputs, result)


def write_bundle(root: Path, *, bias: float = 0.0, golden_bias: float | None = None) -> Path:
    """`golden_bias` other than `bias`: a bundle whose files are whole and whose graph is another model's."""
    root.mkdir(parents=True)
    for batch in BATCHES:
        save_graph(root / f"model.b{batch}.onnx", batch, bias)
    pictures = tuple(golden_picture(seed, bias if golden_bias is None else golden_bias) for seed in range(2))
    files = write_golden(root, Golden(pictures, 0.0, RECIPE.digest, {"numpy": np.__version__}))
    graphs = [root / f"model.b{batch}.onnx" for batch in BATCHES]
    artifacts = tuple(
        Artifact("onnx", "fp32", batch, path.name, file_sha256(path), {}, "any")
        for batch, path in zip(BATCHES, graphs, strict=True)
    )
    manifest = Manifest(
        family="mean",
        variant="S",
        layout="official",
        task="classify",
        config={},
        source={"name": "mean.pth", "sha256": "5" * 64, "tensor_digest": f"{bias:064.3f}"},
        recipe=RECIPE,
        post=POST,
        labels=tuple(Label(index, name) for index, name in enumerate(("red", "green", "blue"))),
        outputs=({"name": "logits", "kind": "logits", "atol": 1e-4, "score_atol": None},),
        choices=(),
        artifacts=artifacts,
        files=files,
        verify={},
        vtk_version="0",
    )
    write_manifest(root, manifest)
    return root


@pytest.fixture(scope="session")
def make_bundle() -> Callable[..., Path]:
    """Writes a whole bundle: `make_bundle(folder, bias=0.0)`; a blank picture's logits are the bias."""
    return write_bundle
