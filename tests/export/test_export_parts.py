"""A promptable model as a bundle of three graphs, and what those make of the golden picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from vtk.bundle import Bundle, read_bundle
from vtk.engines.open import open_engine
from vtk.errors import ExportError, UsageError
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.family import FamilyOptions
from vtk.exporters.lint import lint_file
from vtk.exporters.load import LoadedModel, load_model
from vtk.exporters.to_onnx import export_graphs
from vtk.exporting import ExportListener, ExportSettings, export_bundle
from vtk.exporting_parts import PartsReference
from vtk.exporting_quantized import Calibration
from vtk.parts_golden import read_parts_golden

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
PARTS = ("image_encoder", "text_encoder", "decoder")
# The limits of the golden data's own README.
LIMITS = {"masks": 5e-4, "boxes_xyxy": 1e-5, "logits": 5e-5, "presence": 5e-5, "semantic": 5e-4}
STORED = ("pred_masks", "pred_boxes", "pred_logits", "presence_logits", "semantic_seg")


@pytest.fixture(scope="module")
def bundle(sam3_bundle: Path) -> Bundle:
    return read_bundle(sam3_bundle)


def run(bundle: Bundle, part: str, feeds: dict[str, Any], batch: int = 1) -> dict[str, Any]:
    engine = open_engine(bundle.path(f"{part}.b{batch}.onnx"), backend="ort", device="cpu", threads=1)
    outputs = engine.infer(feeds)
    engine.close()
    return outputs


@pytest.mark.parametrize("case", ["text", "textbox"])
def test_the_graphs_reproduce_the_official_program(bundle: Bundle, case: str) -> None:
    with np.load(GOLDEN / "sam3_small_expected.npz") as arrays:
        expected = dict(arrays)
    images = expected["pixel_uint8"].astype(np.float32) / 127.5 - 1
    tokens = {"input_ids": expected["input_ids_official_pad0"], "attention_mask": expected["attention_mask"]}
    boxes, labels = np.zeros((1, 8, 4), np.float32), np.full((1, 8), -10)
    if case == "textbox":
        boxes[:, :2], labels[:, :2] = expected["input_boxes_cxcywh"], expected["input_boxes_labels"]
    feeds = {**run(bundle, "image_encoder", {"images": images}), **run(bundle, "text_encoder", tokens)}
    feeds |= {"attention_mask": expected["attention_mask"], "boxes": boxes, "box_labels": labels}
    found = run(bundle, "decoder", feeds)
    for (name, limit), stored in zip(LIMITS.items(), STORED, strict=True):
        wanted = expected[f"official_{case}_{stored}"].reshape(found[name].shape)
        assert np.abs(found[name] - wanted).max() <= limit, name


def test_every_part_is_a_static_graph_that_engines_can_build(bundle: Bundle) -> None:
    """Case V24 (no complex numbers), case V23 (no input is a size), and no lint warning at all."""
    for artifact in bundle.manifest.artifacts:
        report = lint_file(bundle.path(artifact.file))
        assert (report.errors, report.warnings) == ((), ())
        assert not {"If", "Loop", "Scan", "RoiAlign", "GridSample", "NonZero", "ScatterND"} & report.op_counts.keys()
        graph = onnx.load(bundle.path(artifact.file), load_external_data=False).graph
        sizes = {node.input[index] for node in graph.node for index in _size_inputs(node) if index < len(node.input)}
        assert not sizes & {value.name for value in graph.input}


def _size_inputs(node: onnx.NodeProto) -> tuple[int, ...]:
    return {"Resize": (2, 3), "Reshape": (1,), "Expand": (1,), "Slice": (1, 2), "Tile": (1,)}.get(node.op_type, ())


def test_the_manifest_names_parts_their_files_and_their_tensors(bundle: Bundle) -> None:
    manifest = bundle.manifest
    assert (manifest.task, manifest.post.kind, manifest.labels) == ("segment", "segment", ())
    made = [(artifact.part, artifact.batch, artifact.file) for artifact in manifest.artifacts]
    assert made == [
        ("image_encoder", 1, "image_encoder.b1.onnx"),
        ("image_encoder", 2, "image_encoder.b2.onnx"),
        ("text_encoder", 1, "text_encoder.b1.onnx"),
        ("decoder", 1, "decoder.b1.onnx"),
    ]
    assert {f"{part}.weights" for part in PARTS} <= manifest.files.keys()
    assert {"tokenizer/vocab.json", "tokenizer/merges.txt", "golden/stages.npz"} <= manifest.files.keys()
    assert (manifest.config["box_slots"], manifest.config["context_length"]) == (8, 32)
    assert [part["name"] for part in manifest.config["parts"]] == list(PARTS)
    for part in manifest.config["parts"]:
        engine = open_engine(bundle.path(f"{part['name']}.b1.onnx"), backend="ort", device="cpu", threads=1)
        stated = [(item["name"], tuple(item["shape"]), item["dtype"]) for item in part["inputs"]]
        assert stated == [(item.name, item.shape, item.dtype) for item in engine.inputs]
        assert [item["name"] for item in part["outputs"]] == [item.name for item in engine.outputs]
        engine.close()
    assert manifest.verify["passed"]


def test_batch_sizes_of_a_part_share_its_weights_and_parts_share_none(bundle: Bundle) -> None:
    places: dict[str, set[str]] = {}
    for artifact in bundle.manifest.artifacts:
        graph = onnx.load(bundle.path(artifact.file), load_external_data=False).graph
        external = [
            entry.value for item in graph.initializer for entry in item.external_data if entry.key == "location"
        ]
        places[artifact.file] = set(external)
    assert places == {
        "image_encoder.b1.onnx": {"image_encoder.weights"},
        "image_encoder.b2.onnx": {"image_encoder.weights"},
        "text_encoder.b1.onnx": {"text_encoder.weights"},
        "decoder.b1.onnx": {"decoder.weights"},
    }
    stored = sum(bundle.path(f"{part}.weights").stat().st_size for part in PARTS)
    assert stored < 1.1 * (GOLDEN / "sam3_small.safetensors").stat().st_size


def test_the_bundle_keeps_what_every_part_gave(bundle: Bundle) -> None:
    """Case V28."""
    golden = read_parts_golden(bundle.root)
    assert golden.max_difference == 0
    assert [len(picture.answers) for picture in golden.pictures] == [2, 2]
    assert [prompt.name for prompt in golden.prompts] == ["'person'", "'visual' and 2 boxes"]
    for picture in golden.pictures:
        assert set(picture.features) == {"fpn_0", "fpn_1", "fpn_2"}
        for answer in picture.answers:
            assert set(answer.outputs) == set(LIMITS)
            assert len(answer.result) == 8
        assert not np.array_equal(picture.answers[0].outputs["masks"], picture.answers[1].outputs["masks"])


def test_a_model_that_does_not_repeat_itself_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(tmp_path)
    reference = PartsReference(loaded)
    tokens = dict.fromkeys(("input_ids", "attention_mask"), np.ones((1, 32), np.int64))
    reference.run("text_encoder", tokens)
    assert reference.max_difference == 0
    monkeypatch.setattr(loaded.part("text_encoder").text.norm, "forward", lambda x: x + torch.rand(1))
    reference.run("text_encoder", tokens)
    assert reference.max_difference > 0


def test_a_reference_in_half_precision_is_not_exported(tmp_path: Path) -> None:
    """Case V37."""
    loaded = load(tmp_path)
    loaded.part("decoder").bfloat16()
    with pytest.raises(ExportError, match="in half precision"):
        export_graphs(loaded, (1,), tmp_path / "again", progress=lambda text: None)


def test_eight_bits_are_refused_before_a_graph_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_picture: Callable[..., Path]
) -> None:
    load(tmp_path)
    save_picture(tmp_path / "pictures" / "one.png")
    monkeypatch.setattr("vtk.exporting.export_graphs", lambda *words, **options: pytest.fail("a graph was made"))
    calibration = Calibration(tmp_path / "pictures")
    with pytest.raises(UsageError, match="--precision int8 is for models of one graph"):
        export_bundle(
            tmp_path,
            tmp_path / "out",
            FamilyOptions(),
            ExportSettings(precision="int8", calibration=calibration),
            ExportListener(),
        )


def load(folder: Path) -> LoadedModel:
    (folder / "config.json").symlink_to(GOLDEN / "sam3_small_config.json")
    (folder / "model.safetensors").symlink_to(GOLDEN / "sam3_small.safetensors")
    return load_model(read_checkpoint(folder), FamilyOptions())
