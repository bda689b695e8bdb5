from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from vtk.exporters.load import LoadedModel
from vtk.exporters.to_onnx import GraphFile, example_images, export_graphs
from vtk.postprocess.matching import match_queries

Load = Callable[..., LoadedModel]
FORBIDDEN = {"If", "Loop", "Scan", "NonZero", "Range", "Unique", "NonMaxSuppression", "Where", "ScatterND", "Cast"}


@pytest.fixture(scope="module")
def toy(golden: Path, load: Load) -> LoadedModel:
    return load(golden / "toy_deim.pth", family="deim")


@pytest.fixture(scope="module")
def graphs(toy: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphFile, ...]:
    return export_graphs(toy, [1, 2], tmp_path_factory.mktemp("graphs"), progress=lambda _: None)


def run(graph: GraphFile, images: torch.Tensor) -> list[np.ndarray]:
    session = ort.InferenceSession(graph.path, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"images": images.numpy()}))


def test_graphs_are_static_and_plain(graphs: tuple[GraphFile, ...]) -> None:
    for file in graphs:
        graph = onnx.shape_inference.infer_shapes(onnx.load(file.path), strict_mode=True).graph
        values = [*graph.input, *graph.output, *graph.value_info]
        assert all(dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim)
        kinds = {value.type.tensor_type.elem_type for value in values} | {item.data_type for item in graph.initializer}
        assert onnx.TensorProto.DOUBLE not in kinds
        assert FORBIDDEN.isdisjoint(node.op_type for node in graph.node)
        assert {node.domain for node in graph.node} == {""}
        assert len(graph.node) < 650


def test_attention_samples_once_per_layer_and_level(graphs: tuple[GraphFile, ...]) -> None:
    counts = Counter(node.op_type for node in onnx.load(graphs[0].path).graph.node)
    assert (counts["GridSample"], counts["TopK"]) == (2 * 3, 2)
    assert counts["LayerNormalization"] == 2 + 2 * 3 + 1
    assert counts["BatchNormalization"] == 0


@pytest.mark.parametrize("index", [0, 1])
def test_onnx_runtime_gives_the_outputs_of_the_module(
    toy: LoadedModel, graphs: tuple[GraphFile, ...], index: int
) -> None:
    images = example_images(toy, batch=graphs[index].batch)
    with torch.inference_mode():
        logits, boxes = toy.wrapper(images)
    own_logits, own_boxes = run(graphs[index], images)
    for row in range(len(images)):
        match = match_queries(logits[row].numpy(), boxes[row].numpy(), own_logits[row], own_boxes[row])
        assert match.unmatched(box_atol=1e-4, logit_atol=1e-3) == 0


def test_rows_of_a_batch_do_not_see_each_other(toy: LoadedModel, graphs: tuple[GraphFile, ...]) -> None:
    """Cases V19, V20: a baked batch size of 1 inside expand or gather breaks the second row."""
    first, second = example_images(toy, batch=2)
    same = run(graphs[1], torch.stack([second, second]))
    mixed = run(graphs[1], torch.stack([first, second]))
    for twice, pair in zip(same, mixed, strict=True):
        assert np.array_equal(twice[0], twice[1])
        assert np.array_equal(twice[1], pair[1])


def test_exporting_leaves_the_reference_in_eval_mode(toy: LoadedModel, graphs: tuple[GraphFile, ...]) -> None:
    assert graphs
    assert not any(module.training for module in toy.wrapper.modules())
