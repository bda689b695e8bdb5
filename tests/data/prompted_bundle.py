"""A promptable model of three or four graphs that take milliseconds, and what each computes, in NumPy.

The first token of a prompt moves all scores, examples raise and counterexamples lower them, and every mask is the mean
color of the picture, coarsely, above a threshold of its own. Asked for with points, it has a graph for these: there
every mask is the same color, raised by the places of points on the object and lowered by those beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from vtk.bundle import Artifact, Bundle, Manifest, file_sha256, write_manifest
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import Recipe
from vtk.segmenting.tokenizer_files import write_tokenizer

SIZE = 32
CONTEXT, SLOTS, QUERIES = 32, 8, 3
RECIPE = Recipe((SIZE, SIZE), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
POST = PostRecipe("segment", score_threshold=0.5)
BOXES = np.array([[0.1, 0.2, 0.5, 0.6], [0.0, 0.0, 1.0, 1.0], [0.25, 0.5, 0.75, 1.1]], np.float32)
BIASES = np.array([3.0, 1.5, -2.0], np.float32)
OFFSETS = np.array([0.0, 0.4, -0.4], np.float32)
PRESENCE = 4.0
POINT_SLOTS = 8
POINT_OFFSETS = np.array([0.25, -0.25, 0.0, 0.5], np.float32)
POINT_IOUS = np.array([0.9, 0.3, 0.45, 0.4], np.float32)

Floats = npt.NDArray[np.float32]


def features_of(images: Floats) -> dict[str, Floats]:
    """Of (N, 3, 32, 32): the mean over colors and over 4, 8 and 16 pixels."""
    gray = images.mean(axis=1, keepdims=True)
    return {
        f"fpn_{level}": gray.reshape(len(images), 1, SIZE // k, k, SIZE // k, k).mean(axis=(3, 5)).astype(np.float32)
        for level, k in enumerate((4, 8, 16))
    }


def shift_of(token: int, positive: int, negative: int) -> float:
    """What a prompt with this first token and these numbers of boxes adds to every logit."""
    return token / 10_000 + positive - negative


def place_of(xy: Floats, labels: npt.NDArray[np.int64]) -> float:
    """What points (K, 2) in 0..1 with these labels add to every mask."""
    signs = (labels > 0).astype(np.float32) - (labels == 0)
    return float((xy.sum(axis=1) * signs).sum())


def write_prompted_bundle(root: Path, *, batches: Sequence[int] = (1,), points: bool = False) -> Bundle:
    """The whole bundle."""
    root.mkdir(parents=True)
    graphs = {("image_encoder", batch): _image_encoder(batch, points=points) for batch in batches}
    graphs |= {("point_decoder", 1): _point_decoder()} if points else {}
    graphs |= {("text_encoder", 1): _text_encoder(), ("decoder", 1): _decoder()}
    artifacts = []
    for (part, batch), graph in graphs.items():
        path = root / f"{part}.b{batch}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
        artifacts.append(Artifact("onnx", "fp32", batch, path.name, file_sha256(path), {}, "any", part))
    manifest = Manifest(
        family="prompted",
        variant="S",
        layout="official",
        task="segment",
        config={"box_slots": SLOTS, "context_length": CONTEXT, **({"point_slots": POINT_SLOTS} if points else {})},
        source={"name": "prompted.pth", "sha256": "7" * 64, "tensor_digest": "9" * 64},
        recipe=RECIPE,
        post=POST,
        labels=(),
        outputs=(),
        choices=(),
        artifacts=tuple(artifacts),
        files={file: file_sha256(root / file) for file in write_tokenizer(root)},
        verify={},
        vtk_version="0",
    )
    return write_manifest(root, manifest)


def _image_encoder(batch: int, *, points: bool) -> onnx.GraphProto:
    nodes = [helper.make_node("ReduceMean", ["images", "axis"], ["gray"], keepdims=1)]
    nodes += [
        helper.make_node("AveragePool", ["gray"], [f"fpn_{level}"], kernel_shape=[k, k], strides=[k, k])
        for level, k in enumerate((4, 8, 16))
    ]
    outputs = [_floats(f"fpn_{level}", (batch, 1, SIZE // k, SIZE // k)) for level, k in enumerate((4, 8, 16))]
    if points:
        nodes.append(helper.make_node("Identity", ["fpn_0"], ["point_fpn_0"]))
        outputs.append(_floats("point_fpn_0", (batch, 1, 8, 8)))
    return helper.make_graph(
        nodes, "image_encoder", [_floats("images", (batch, 3, SIZE, SIZE))], outputs, [_constant("axis", np.array([1]))]
    )


def _point_decoder() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Greater", ["point_labels", "beside"], ["is_on"]),
        helper.make_node("Equal", ["point_labels", "beside"], ["is_beside"]),
        helper.make_node("Cast", ["is_on"], ["on"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["is_beside"], ["off"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["on", "off"], ["signs"]),
        helper.make_node("Unsqueeze", ["signs", "last"], ["columns"]),
        helper.make_node("Mul", ["points", "columns"], ["signed"]),
        helper.make_node("ReduceSum", ["signed"], ["place"], keepdims=0),
        helper.make_node("Add", ["point_fpn_0", "offsets"], ["colors"]),
        helper.make_node("Add", ["colors", "place"], ["point_masks"]),
        helper.make_node("Identity", ["ious"], ["point_ious"]),
        helper.make_node("Reshape", ["place", "one_by_one"], ["point_object"]),
    ]
    constants = {
        "beside": np.array(0),
        "last": np.array([2]),
        "offsets": POINT_OFFSETS.reshape(1, 4, 1, 1),
        "ious": POINT_IOUS[None],
        "one_by_one": np.array([1, 1]),
    }
    inputs = [_floats("point_fpn_0", (1, 1, 8, 8)), _floats("points", (1, POINT_SLOTS, 2))]
    inputs += [_integers("point_labels", (1, POINT_SLOTS))]
    outputs = [_floats("point_masks", (1, 4, 8, 8)), _floats("point_ious", (1, 4)), _floats("point_object", (1, 1))]
    return helper.make_graph(nodes, "point_decoder", inputs, outputs, [_constant(*item) for item in constants.items()])


def _text_encoder() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Mul", ["input_ids", "attention_mask"], ["known"]),
        helper.make_node("Cast", ["known"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["numbers", "last"], ["text_features"]),
    ]
    inputs = [_integers("input_ids", (1, CONTEXT)), _integers("attention_mask", (1, CONTEXT))]
    outputs = [_floats("text_features", (1, CONTEXT, 1))]
    return helper.make_graph(nodes, "text_encoder", inputs, outputs, [_constant("last", np.array([2]))])


def _decoder() -> onnx.GraphProto:
    nodes = [
        helper.make_node("Add", ["fpn_0", "offsets"], ["masks"]),
        helper.make_node("Identity", ["fpn_0"], ["semantic"]),
        # the first token of the prompt, scaled; used slots add one each, or take one
        helper.make_node("Slice", ["text_features", "one", "two", "one"], ["token"]),
        helper.make_node("ReduceSum", ["token"], ["number"], keepdims=0),
        helper.make_node("Mul", ["number", "scale"], ["shift"]),
        helper.make_node("Equal", ["box_labels", "positive"], ["is_positive"]),
        helper.make_node("Equal", ["box_labels", "negative"], ["is_negative"]),
        helper.make_node("Cast", ["is_positive"], ["positives"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["is_negative"], ["negatives"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["positives", "negatives"], ["signs"]),
        helper.make_node("ReduceSum", ["signs"], ["examples"], keepdims=0),
        helper.make_node("Add", ["biases", "shift"], ["moved"]),
        helper.make_node("Add", ["moved", "examples"], ["logits"]),
        # zeros that hold every input in the graph
        helper.make_node("ReduceSum", ["attention_mask"], ["count"], keepdims=0),
        helper.make_node("Cast", ["count"], ["counted"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["boxes"], ["area"], keepdims=0),
        helper.make_node("ReduceSum", ["fpn_1"], ["middle"], keepdims=0),
        helper.make_node("ReduceSum", ["fpn_2"], ["coarse"], keepdims=0),
        helper.make_node("Sum", ["counted", "area", "middle", "coarse"], ["all"]),
        helper.make_node("Mul", ["all", "zero"], ["nothing"]),
        helper.make_node("Add", ["level", "nothing"], ["presence"]),
        helper.make_node("Add", ["places", "nothing"], ["boxes_xyxy"]),
    ]
    constants = {
        "offsets": OFFSETS.reshape(1, QUERIES, 1, 1),
        "biases": BIASES[None],
        "places": BOXES[None],
        "level": np.full((1, 1), PRESENCE, np.float32),
        "scale": np.float32(1e-4),
        "zero": np.float32(0),
        "positive": np.array(1),
        "negative": np.array(0),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    inputs = [_floats(f"fpn_{level}", (1, 1, SIZE // k, SIZE // k)) for level, k in enumerate((4, 8, 16))]
    inputs += [_floats("text_features", (1, CONTEXT, 1)), _integers("attention_mask", (1, CONTEXT))]
    inputs += [_floats("boxes", (1, SLOTS, 4)), _integers("box_labels", (1, SLOTS))]
    outputs = [
        _floats("masks", (1, QUERIES, 8, 8)),
        _floats("boxes_xyxy", (1, QUERIES, 4)),
        _floats("logits", (1, QUERIES)),
        _floats("presence", (1, 1)),
        _floats("semantic", (1, 1, 8, 8)),
    ]
    return helper.make_graph(nodes, "decoder", inputs, outputs, [_constant(*item) for item in constants.items()])


def _floats(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _integers(name: str, shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, list(shape))


def _constant(name: str, value: npt.NDArray[np.generic] | np.generic) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)
