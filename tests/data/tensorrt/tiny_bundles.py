"""The smallest graphs and bundles that an engine can be built for."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fake_tensorrt import fake_module
from onnx import TensorProto, helper, numpy_helper

from vtk.bundle import Artifact, Bundle, Label, Manifest, file_sha256
from vtk.exporters.to_tensorrt_api import TensorRT
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe


def make_api(release: str) -> TensorRT:
    module = fake_module(release)
    return TensorRT(module, module.__name__, module.__version__)


def save_graph(path: Path, *, batch: int | str = 1, half: bool = False, size_hw: tuple[int, int] = (4, 6)) -> Path:
    """Mean color of a picture times a matrix: `images` (N, 3, H, W) float32 -> `logits` (N, 3) float32."""
    weights = np.arange(9, dtype=np.float16 if half else np.float32).reshape(3, 3) / 8
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
    ]
    if half:
        nodes.insert(0, helper.make_node("Cast", ["images"], ["x"], to=TensorProto.FLOAT16))
        nodes += [
            helper.make_node("MatMul", ["flat", "w"], ["scores"]),
            helper.make_node("Cast", ["scores"], ["logits"], to=TensorProto.FLOAT),
        ]
    else:
        nodes[0].input[0] = "images"
        nodes.append(helper.make_node("MatMul", ["flat", "w"], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, *size_hw])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def make_bundle(root: Path, *, batches: tuple[int, ...] = (1,), precision: str = "fp32", **changes: Any) -> Bundle:
    """A classifier with graphs of these batch sizes; its manifest is not written."""
    artifacts = []
    for batch in batches:
        path = save_graph(root / f"model.b{batch}.onnx", batch=batch, half=precision == "fp16")
        artifacts.append(Artifact("onnx", precision, batch, path.name, file_sha256(path), {"opset": "18"}, "any"))
    values: dict[str, Any] = {
        "family": "tiny",
        "variant": "S",
        "layout": "official",
        "task": "classify",
        "config": {},
        "source": {"name": "tiny.pth", "tensor_digest": "0" * 64},
        "recipe": Recipe((4, 6)),
        "post": PostRecipe("classify", top_k=2),
        "labels": tuple(Label(index, name) for index, name in enumerate(("cat", "dog", "big bird"))),
        "outputs": (),
        "choices": (),
        "artifacts": tuple(artifacts),
        "files": {},
        "verify": {},
        "vtk_version": "0",
    }
    return Bundle(root, Manifest(**{**values, **changes}))
