"""`model.segment` of the Python API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import vtk
from vtk.bundle import read_bundle
from vtk.errors import ImageError, UsageError
from vtk.segmenting.predictor import SegmentPredictor, open_segment_predictor
from vtk.segmenting.prompts import Prompt

Picture = npt.NDArray[np.uint8]
BOX, OTHER = (2.0, 3.0, 20.0, 15.0), (1.0, 1.0, 4.0, 4.0)


@pytest.fixture(scope="module")
def model(prompted_bundle: Path) -> Iterator[vtk.Model]:
    with vtk.load(prompted_bundle, backend="ort", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def parts(prompted_bundle: Path) -> Iterator[SegmentPredictor]:
    with open_segment_predictor(read_bundle(prompted_bundle), backend="ort", threads=1) as opened:
        yield opened


@pytest.fixture
def picture(rng: np.random.Generator) -> Picture:
    return rng.integers(0, 256, (30, 44, 3), np.uint8)


def same(one: Any, other: Any) -> bool:
    return bool(one.masks.rle == other.masks.rle and (one.class_ids == other.class_ids).all())


def test_a_picture_may_be_anything_that_is_one(
    model: vtk.Model, parts: SegmentPredictor, picture: Picture, tmp_path: Path
) -> None:
    Image.fromarray(picture).save(tmp_path / "a.png")
    expected = parts.segment(parts.embed(picture), [Prompt("yellow bus"), Prompt("cat")])
    for image in (picture, Image.fromarray(picture), tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        assert same(model.segment(image, ["yellow bus", "cat"]), expected)
    assert len(expected) > 1


def test_a_list_gives_a_list(model: vtk.Model, picture: Picture) -> None:
    found = model.segment([picture, picture[:, ::-1].copy()], "cat")
    assert [item.resolution_wh for item in found] == [(44, 30)] * 2
    assert same(found[0], model.segment(picture, Prompt("cat")))


def test_boxes_belong_to_the_one_prompt(model: vtk.Model, parts: SegmentPredictor, picture: Picture) -> None:
    embedded = parts.embed(picture)
    for prompts, text in ((["cat"], "cat"), ("cat", "cat"), ([Prompt("cat")], "cat"), ((), None)):
        found = model.segment(picture, prompts, boxes=[BOX], negative_boxes=[OTHER], score_threshold=0.0)
        post = parts.bundle.manifest.post
        expected = parts.segment(embedded, [Prompt(text, (BOX,), (OTHER,))], type(post)("segment", score_threshold=0.0))
        np.testing.assert_array_equal(found.scores, expected.scores)


def test_the_threshold_is_followed(model: vtk.Model, picture: Picture) -> None:
    every, few = model.segment(picture, "cat", score_threshold=0.0), model.segment(picture, "cat", score_threshold=0.9)
    assert len(every) == 3
    assert len(few) == (every.scores > 0.9).sum() > 0


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), "0.5"])
def test_a_threshold_that_is_none_is_refused(model: vtk.Model, picture: Picture, threshold: Any) -> None:
    with pytest.raises(UsageError, match="score_threshold is a number from 0 to 1"):
        model.segment(picture, "cat", score_threshold=threshold)


@pytest.mark.parametrize("prompts", [5, [5], None, [None]])
def test_what_are_no_prompts_is_refused(model: vtk.Model, picture: Picture, prompts: Any) -> None:
    with pytest.raises(UsageError, match=r"texts? or"):
        model.segment(picture, prompts)


def test_what_cannot_be_asked_is_refused(model: vtk.Model, toy_model: vtk.Model, picture: Picture) -> None:
    assert model.task == "segment"
    assert model.labels == ()
    with pytest.raises(UsageError, match=r"model\.segment"):
        model(picture)
    with pytest.raises(UsageError, match="nothing to look for"):
        model.segment(picture)
    with pytest.raises(UsageError, match="Boxes belong to one prompt"):
        model.segment(picture, ["cat", "dog"], boxes=[BOX])
    with pytest.raises(UsageError, match="Boxes belong to one prompt"):
        model.segment(picture, Prompt("cat", (BOX,)), boxes=[BOX])
    with pytest.raises(UsageError, match="pixels of one picture"):
        model.segment([picture, picture], "cat", boxes=[BOX])
    with pytest.raises(ImageError, match=r"Picture 1: .*no picture"):
        model.segment([picture, b"nothing"], "cat")
    with pytest.raises(UsageError, match="is for classify and takes no prompts"):
        toy_model.segment(picture, "cat")


@pytest.fixture(scope="module")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[vtk.Model]:
    """A classifier of one node."""
    import onnx
    from onnx import TensorProto, helper

    from vtk.bundle import Artifact, Label, Manifest, file_sha256, write_manifest
    from vtk.postprocess.recipe import PostRecipe
    from vtk.preprocess.recipe import Recipe

    root = tmp_path_factory.mktemp("mean")
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, (1, 3, 8, 8))
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, 3))
    node = helper.make_node("ReduceMean", ["images"], ["logits"], axes=[2, 3], keepdims=0)
    graph = helper.make_graph([node], "mean", [images], [logits])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9), root / "m.onnx")
    manifest = Manifest(
        family="mean", variant="S", layout="official", task="classify", config={}, source={"tensor_digest": "1"},
        recipe=Recipe((8, 8)), post=PostRecipe("classify"), labels=tuple(Label(i, str(i)) for i in range(3)),
        outputs=(), choices=(), files={}, verify={}, vtk_version="0",
        artifacts=(Artifact("onnx", "fp32", 1, "m.onnx", file_sha256(root / "m.onnx"), {}, "any"),),
    )  # fmt: skip
    write_manifest(root, manifest)
    with vtk.load(root, backend="ort", threads=1) as opened:
        yield opened
