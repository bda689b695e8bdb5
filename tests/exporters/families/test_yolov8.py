from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import numpy_helper
from torch import Tensor, nn

from vtk.errors import CheckpointError, UnknownFamilyError, UsageError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.coco import COCO_NAMES
from vtk.exporters.families.yolov8 import VARIANTS, YOLOv8
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.load import LoadedModel, LoadReport, fill
from vtk.exporters.modules.yolov8 import (
    DFL,
    SPPF,
    BoxDecode,
    C2f,
    Conv,
    YOLOv8Config,
    YOLOv8Export,
    YOLOv8Model,
    anchor_points,
)
from vtk.exporters.to_onnx import export_graphs
from vtk.postprocess.api import postprocess
from vtk.postprocess.results import Detections
from vtk.preprocess.apply import preprocess

PARAMETERS = {"n": 3_157_200, "s": 11_166_560, "m": 25_902_640, "l": 43_691_520, "x": 68_229_648}
TINY = YOLOv8Config((8, 16, 24, 32, 40), (1, 2, 3, 1, 2, 1, 1, 2), 3, box_channels=16, class_channels=24, reg_max=16)
FAMILY = YOLOv8()


def variant_config(name: str, num_classes: int = 80) -> YOLOv8Config:
    widths, depths = next(key for key, value in VARIANTS.items() if value == name)
    w0, w1, w2, w3, w4 = widths
    box_channels, class_channels = max(16, w2 // 4, 64), max(w2, min(num_classes, 100))
    return YOLOv8Config((w0, w1, w2, w3, w4), depths, num_classes, box_channels, class_channels, 16)


def shapes_of(config: YOLOv8Config) -> dict[str, Tensor]:
    with torch.device("meta"):
        return dict(YOLOv8Model(config).state_dict())


def randomized(config: YOLOv8Config) -> nn.Module:
    """Every weight and statistic is drawn, so that a wrong or missing one changes the output."""
    module = YOLOv8Model(config).eval()
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point() and ".dfl." not in name:
            tensor.normal_(std=0.3)
            if name.endswith("bn.weight"):
                tensor.add_(1)
            elif tensor.ndim == 4:
                tensor.mul_(5 / tensor[0].numel() ** 0.5)
    return module


def checkpoint(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> Checkpoint:
    return Checkpoint(
        path=Path("yolo.pt"),
        format="pth",
        tensors=tensors,
        file_sha256="0" * 64,
        tensor_digest="0" * 64,
        weights="model",
        available_weights=("model",),
        metadata=metadata or {},
    )


def infer(
    tensors: Mapping[str, Tensor], options: FamilyOptions | None = None, metadata: Mapping[str, Any] | None = None
) -> ModelSpec:
    options, source = options or FamilyOptions(), checkpoint(tensors, metadata)
    layout = FAMILY.recognize(source, options)
    assert layout is not None
    return FAMILY.infer(source, layout, options)


def load(
    tensors: Mapping[str, Tensor], options: FamilyOptions, metadata: Mapping[str, Any] | None = None
) -> LoadedModel:
    spec, source = infer(tensors, options, metadata), checkpoint(tensors, metadata)
    module = FAMILY.build(spec)
    report: LoadReport = fill(module, FAMILY.remap(source, spec), FAMILY, source="yolo.pt")
    wrapper = FAMILY.wrap(module, spec).eval().requires_grad_(False)
    return LoadedModel(FAMILY, spec, wrapper, report, source)


# --- recognition and inference


@pytest.mark.parametrize("name", PARAMETERS)
def test_variants_are_inferred_and_have_the_published_parameter_count(name: str) -> None:
    config = variant_config(name)
    with torch.device("meta"):
        module = YOLOv8Model(config)
    assert sum(parameter.numel() for parameter in module.parameters()) == PARAMETERS[name]
    spec = infer(module.state_dict())
    assert (spec.variant, spec.num_classes, spec.config) == (name, 80, asdict(config))


@pytest.mark.parametrize("num_classes", [1, 18, 80, 365])
def test_class_counts_and_unlisted_widths_are_inferred(num_classes: int) -> None:
    config = replace(TINY, num_classes=num_classes)
    spec = infer(shapes_of(config))
    assert (spec.variant, spec.num_classes) == ("custom", num_classes)
    assert spec.config == asdict(config)


@pytest.mark.parametrize("prefix", ["", "model.", "model.model."])
def test_names_of_every_wrapper_level_are_recognized(prefix: str) -> None:
    tensors = {prefix + key.removeprefix("model."): value for key, value in randomized(TINY).state_dict().items()}
    assert load(tensors, FamilyOptions(size_hw=(64, 64))).report.fraction == 1


def with_keys(*added: str, removed: str = "$^") -> dict[str, Tensor]:
    kept = {key: value for key, value in shapes_of(TINY).items() if not re.match(removed, key)}
    return kept | {key: torch.empty(1, device="meta") for key in added}


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        pytest.param(with_keys("model.22.proto.cv1.conv.weight"), "model.22.proto", id="segmentation"),
        pytest.param(with_keys("model.22.cv4.0.0.conv.weight"), "model.22.cv4", id="pose or oriented boxes"),
        pytest.param(with_keys("model.9.linear.weight", removed=r"model\.(9|1\d|2\d)\."), "model.9.linear", id="cls"),
        pytest.param(with_keys("model.2.cv3.conv.weight"), "model.2.cv3", id="yolov5 C3 block"),
        pytest.param(with_keys("model.10.m.0.attn.qkv.conv.weight"), "model.10", id="yolo11 attention"),
        pytest.param(with_keys("model.22.cv3.0.0.0.conv.weight"), "model.22.cv3.0.0.0", id="yolo11 head"),
        pytest.param(with_keys("model.22.one2one_cv2.0.0.conv.weight"), "one2one", id="yolov10"),
        pytest.param(with_keys("model.28.cv2.0.0.conv.weight"), "model.28", id="p2 or p6 head"),
        pytest.param(with_keys(removed=r"model\.22\.dfl"), "lacks 'model.22.dfl.conv.weight'", id="no dfl"),
    ],
)
def test_other_versions_and_tasks_are_refused_with_the_reason(tensors: dict[str, Tensor], named: str) -> None:
    with pytest.raises(UnknownFamilyError, match="no YOLOv8 detector") as caught:
        FAMILY.recognize(checkpoint(tensors), FamilyOptions())
    assert named in caught.value.message
    assert caught.value.hint is not None


def test_foreign_tensors_are_left_to_other_families() -> None:
    tensors = {"cls_token": torch.empty(1, 1, 8), "blocks.0.attn.qkv.weight": torch.empty(24, 8)}
    assert FAMILY.recognize(checkpoint(tensors), FamilyOptions()) is None


def test_shapes_that_contradict_are_refused() -> None:
    tensors = shapes_of(TINY)
    with pytest.raises(CheckpointError, match="32 rows, but 16 bins need 64"):
        infer(tensors | {"model.22.cv2.0.2.weight": torch.empty(32, 16, 1, 1, device="meta")})
    with pytest.raises(CheckpointError, match=r"'model.5.conv.weight'.*\(32,\)"):
        infer(tensors | {"model.5.conv.weight": torch.empty(32, device="meta")})
    real = dict(randomized(TINY).state_dict())
    real["model.12.cv1.conv.weight"] = torch.zeros(32, 99, 1, 1)
    with pytest.raises(WeightsMismatchError, match=r"model\.12\.cv1\.conv\.weight"):
        load(real, FamilyOptions(size_hw=(64, 64)))
    del real["model.12.cv1.conv.weight"]
    with pytest.raises(WeightsMismatchError, match="missing from the checkpoint"):
        load(real, FamilyOptions(size_hw=(64, 64)))


def test_size_comes_from_the_flag_or_the_training_or_is_assumed() -> None:
    tensors, told = shapes_of(TINY), {"train_args": {"imgsz": 320}}
    for options, metadata, expected, assumed in (
        (FamilyOptions(), {}, (640, 640), True),
        (FamilyOptions(), told, (320, 320), False),
        (FamilyOptions(size_hw=(96, 160)), told, (96, 160), False),
    ):
        spec = infer(tensors, options, metadata)
        assert spec.input_hw == spec.recipe.size_hw == expected
        assert next(choice for choice in spec.choices if choice.flag == "--size").assumed is assumed
    with pytest.raises(UsageError, match=r"multiples of 32, got 100,640.*--size 96,640"):
        infer(tensors, FamilyOptions(size_hw=(100, 640)))


def test_labels_come_from_the_flag_or_the_checkpoint_or_are_assumed() -> None:
    tensors = shapes_of(TINY)
    stored = {"names": {"0": "a", "2": "c", "1": "b"}}
    given = FamilyOptions(class_names=("x", "y", "z"))
    for options, metadata, expected, assumed in (
        (FamilyOptions(), {}, None, True),
        (FamilyOptions(), stored, ("a", "b", "c"), False),
        (FamilyOptions(), {"names": ["a", "b", "c"]}, ("a", "b", "c"), False),
        (given, stored, ("x", "y", "z"), False),
    ):
        spec = infer(tensors, options, metadata)
        assert spec.class_names == expected
        assert next(choice for choice in spec.choices if choice.flag == "--labels").assumed is assumed
    with pytest.raises(UsageError, match="1 names, but the model has 3 classes"):
        infer(tensors, FamilyOptions(class_names=("x",)))
    with pytest.raises(CheckpointError, match="classes 0, 1, but its model has 3"):
        infer(tensors, metadata={"names": ["a", "b"]})


def test_eighty_classes_are_coco_with_its_category_ids() -> None:
    spec = infer(shapes_of(replace(TINY, num_classes=80)))
    assert spec.class_names == COCO_NAMES
    assert spec.extras["category_ids"][:13] == (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14)


def test_strides_of_another_head_are_refused() -> None:
    assert infer(shapes_of(TINY), metadata={"stride": [8.0, 16.0, 32.0]}).variant == "custom"
    with pytest.raises(CheckpointError, match="strides"):
        infer(shapes_of(TINY), metadata={"stride": [8.0, 16.0, 32.0, 64.0]})


def test_recipe_is_letterbox_and_only_divides_by_255_case_v46() -> None:
    recipe = infer(shapes_of(TINY), FamilyOptions(size_hw=(64, 64))).recipe
    assert (recipe.resize, recipe.interpolation, recipe.scale_up) == ("letterbox", "cv2_linear", True)
    picture = np.full((32, 64, 3), (255, 51, 0), dtype=np.uint8)
    tensor = preprocess(picture, recipe).tensor
    np.testing.assert_allclose(tensor[:, 32, 32], [1, 0.2, 0], atol=1e-7)
    np.testing.assert_allclose(tensor[:, 0, 0], 114 / 255, atol=1e-7)
    assert recipe.digest != replace(recipe, mean=(0.5, 0.5, 0.5)).digest


# --- the module against naive formulas


def conv_twin(weights: Mapping[str, Tensor], name: str, x: Tensor, stride: int = 1) -> Tensor:
    """Convolution, normalization with stored statistics, x * sigmoid(x), from the names alone."""
    w = {key: weights[f"{name}.{key}"] for key in ("conv.weight", "bn.weight", "bn.bias")}
    mean, var = weights[f"{name}.bn.running_mean"], weights[f"{name}.bn.running_var"]
    y = F.conv2d(x, w["conv.weight"], stride=stride, padding=w["conv.weight"].shape[-1] // 2)
    column = (slice(None), None, None)
    y = (y - mean[column]) / (var[column] + 1e-3).sqrt() * w["bn.weight"][column] + w["bn.bias"][column]
    return y * y.sigmoid()


def c2f_twin(weights: Mapping[str, Tensor], name: str, x: Tensor, *, shortcut: bool) -> Tensor:
    first = conv_twin(weights, f"{name}.cv1", x)
    half = first.shape[1] // 2
    last, everything, step = first[:, half:], first, 0
    while f"{name}.m.{step}.cv1.conv.weight" in weights:
        inner = conv_twin(weights, f"{name}.m.{step}.cv1", last)
        inner = conv_twin(weights, f"{name}.m.{step}.cv2", inner)
        last = last + inner if shortcut else inner
        everything = torch.cat([everything, last], dim=1)
        step += 1
    return conv_twin(weights, f"{name}.cv2", everything)


def sppf_twin(weights: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    reduced = conv_twin(weights, f"{name}.cv1", x)
    pools = [F.max_pool2d(reduced, size, stride=1, padding=size // 2) for size in (5, 9, 13)]
    return conv_twin(weights, f"{name}.cv2", torch.cat([reduced, *pools], dim=1))


# The published description, (from, block) per layer: -1 is the layer before.
PUBLISHED: tuple[tuple[int | tuple[int, int], str], ...] = (
    (-1, "down"), (-1, "down"), (-1, "c2f+"), (-1, "down"), (-1, "c2f+"), (-1, "down"), (-1, "c2f+"), (-1, "down"),
    (-1, "c2f+"), (-1, "sppf"),
    (-1, "up"), ((-1, 6), "cat"), (-1, "c2f"), (-1, "up"), ((-1, 4), "cat"), (-1, "c2f"),
    (-1, "down"), ((-1, 12), "cat"), (-1, "c2f"), (-1, "down"), ((-1, 9), "cat"), (-1, "c2f"),
)  # fmt: skip


def features_twin(weights: Mapping[str, Tensor], images: Tensor) -> list[Tensor]:
    outs: list[Tensor] = []
    for index, (source, kind) in enumerate(PUBLISHED):
        name = f"model.{index}"
        if isinstance(source, tuple):
            outs.append(torch.cat([outs[source[0]], outs[source[1]]], dim=1))
            continue
        x = outs[source] if outs else images
        if kind == "up":
            outs.append(x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3))
        elif kind == "down":
            outs.append(conv_twin(weights, name, x, stride=2))
        elif kind == "sppf":
            outs.append(sppf_twin(weights, name, x))
        else:
            outs.append(c2f_twin(weights, name, x, shortcut=kind == "c2f+"))
    return [outs[index] for index in (15, 18, 21)]


def model_twin(weights: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Each anchor by itself: expected distances to the four sides, in strides, around the center of its cell."""
    columns = []
    for level, (x, stride) in enumerate(zip(features_twin(weights, images), (8, 16, 32), strict=True)):
        maps = []
        for branch in ("cv2", "cv3"):
            name = f"model.22.{branch}.{level}"
            hidden = conv_twin(weights, f"{name}.1", conv_twin(weights, f"{name}.0", x))
            maps.append(F.conv2d(hidden, weights[f"{name}.2.weight"], weights[f"{name}.2.bias"]))
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                bins = maps[0][:, :, row, column].reshape(-1, 4, 16).softmax(dim=-1)
                left, top, right, bottom = (bins * torch.arange(16)).sum(dim=-1).unbind(dim=1)
                box = [column + 0.5 + (right - left) / 2, row + 0.5 + (bottom - top) / 2, left + right, top + bottom]
                columns.append(torch.cat([torch.stack(box, dim=1) * stride, maps[1][:, :, row, column].sigmoid()], 1))
    return torch.stack(columns, dim=2)


def test_the_whole_model_equals_the_published_description() -> None:
    module = randomized(TINY).double()
    images = torch.rand(2, 3, 64, 96, dtype=torch.float64)
    with torch.no_grad():
        (output,) = YOLOv8Export(module, (64, 96)).double()(images)
        expected = model_twin(module.state_dict(), images)
    assert output.shape == (2, 4 + 3, 8 * 12 + 4 * 6 + 2 * 3)
    assert expected[:, 4:].std() > 0.05  # random heads that say something
    torch.testing.assert_close(output, expected, atol=1e-9, rtol=1e-9)


def test_blocks_equal_their_formulas() -> None:
    x = torch.rand(2, 12, 9, 7)
    for block, twin in (
        (Conv(12, 8, 3, stride=2), lambda w, y: conv_twin(w, "block", y, stride=2)),
        (C2f(12, 16, 3, shortcut=True), lambda w, y: c2f_twin(w, "block", y, shortcut=True)),
        (C2f(12, 16, 0, shortcut=False), lambda w, y: c2f_twin(w, "block", y, shortcut=False)),
        (SPPF(12), lambda w, y: sppf_twin(w, "block", y)),
    ):
        with torch.no_grad():
            weights = {f"block.{key}": value for key, value in block.state_dict().items()}
            torch.testing.assert_close(block.eval()(x), twin(weights, x), atol=1e-5, rtol=1e-5)


def test_distances_are_expectations_and_boxes_surround_their_cell() -> None:
    logits = torch.full((1, 64, 1), -50.0)
    for side, bin_index in enumerate((1, 2, 3, 5)):
        logits[0, side * 16 + bin_index] = 50
    distances = DFL(16).eval()(logits)
    assert distances.flatten().tolist() == [1, 2, 3, 5]
    points, strides = anchor_points((32, 64))
    assert points.shape == (2, 4 * 8 + 2 * 4 + 1 * 2)
    # Row-major within a level, levels 8, 16, 32.
    assert points[:, [0, 1, 8, 32, 40, 41]].T.tolist() == [
        [0.5, 0.5], [1.5, 0.5], [0.5, 1.5], [0.5, 0.5], [0.5, 0.5], [1.5, 0.5]
    ]  # fmt: skip
    assert strides[[0, 31, 32, 39, 40, 41]].tolist() == [8, 8, 16, 16, 32, 32]
    boxes = BoxDecode((32, 64))(distances.expand(1, 4, 42))
    # Anchor 9 is the cell (1, 1) of stride 8: x from (1.5 - 1) * 8 to (1.5 + 3) * 8, y from -0.5 * 8 to 6.5 * 8.
    assert boxes[0, :, 9].tolist() == [20, 24, 32, 56]


def test_half_precision_checkpoints_are_loaded_as_float32() -> None:
    module = randomized(TINY)
    loaded = load(module.half().state_dict(), FamilyOptions(size_hw=(64, 64)))
    assert {parameter.dtype for parameter in loaded.wrapper.parameters()} == {torch.float32}
    expected = YOLOv8Export(module.float(), (64, 64))
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded.wrapper(images)[0], expected(images)[0], atol=0, rtol=0)


# --- export


def limits(spec: ModelSpec) -> tuple[float, float]:
    (output,) = spec.outputs
    assert output.score_atol is not None
    return output.atol, output.score_atol


def test_the_exported_graph_reproduces_the_model(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    loaded = load(randomized(TINY).state_dict(), FamilyOptions(size_hw=(64, 64)))
    box_atol, score_atol = limits(loaded.spec)
    for graph in export_graphs(loaded, (1, 2), tmp_path, progress=lambda text: None):
        session = ort.InferenceSession(str(graph.path), providers=["CPUExecutionProvider"])
        assert [value.name for value in session.get_outputs()] == ["output0"]
        images = torch.rand(graph.batch, 3, 64, 64)
        (actual,) = session.run(None, {"images": images.numpy()})
        expected = loaded.wrapper(images)[0].numpy()
        assert actual.shape == expected.shape == (graph.batch, 7, 84)
        np.testing.assert_allclose(actual[:, :4], expected[:, :4], atol=box_atol, rtol=0)
        np.testing.assert_allclose(actual[:, 4:], expected[:, 4:], atol=score_atol, rtol=0)


# --- real weights of a package, where it is installed: an optional peer, never shipped


def peer_file() -> Path:
    try:
        files = importlib.metadata.files("nudenet") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the optional peer nudenet==3.4.2 is not installed")
    found = [Path(str(file.locate())) for file in files if file.name == "320n.onnx"]
    if not found:
        pytest.skip("nudenet is installed without 320n.onnx")
    return found[0]


def unfused(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """A state_dict in the official names: each fused bias becomes a batch norm that changes nothing else."""
    model = onnx.load(path)
    tensors: dict[str, Tensor] = {}
    for item in model.graph.initializer:
        value = torch.from_numpy(numpy_helper.to_array(item).copy())
        if item.name.endswith("conv.bias"):
            norm = item.name.removesuffix("conv.bias") + "bn"
            ones = torch.ones_like(value)
            tensors |= {f"{norm}.weight": ones * (1 + 1e-3) ** 0.5, f"{norm}.bias": value}
            tensors |= {f"{norm}.running_mean": torch.zeros_like(value), f"{norm}.running_var": ones}
        elif item.name.startswith("model."):
            tensors[item.name] = value
    names = ast.literal_eval(next(item.value for item in model.metadata_props if item.key == "names"))
    return tensors, list(names.values())


def test_real_weights_equal_the_graph_that_their_author_exported() -> None:
    ort, data = pytest.importorskip("onnxruntime"), pytest.importorskip("skimage.data")
    path = peer_file()
    tensors, names = unfused(path)
    loaded = load(tensors, FamilyOptions(size_hw=(320, 320)), {"names": names})
    assert (loaded.spec.variant, loaded.spec.num_classes) == ("n", 18)
    picture: npt.NDArray[np.uint8] = data.astronaut()
    ready = preprocess(picture, loaded.spec.recipe)
    images = ready.tensor[None]
    (expected,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"images": images})
    actual = loaded.wrapper(torch.from_numpy(images))[0].numpy()
    np.testing.assert_allclose(actual[:, :4], expected[:, :4], atol=5e-3, rtol=0)
    np.testing.assert_allclose(actual[:, 4:], expected[:, 4:], atol=1e-5, rtol=0)

    result = postprocess({"output0": actual[0]}, ready.geometry, loaded.spec.post)
    assert isinstance(result, Detections)
    assert [names[index] for index in result.class_ids] == ["FACE_FEMALE"]
    # Scores and box of the author's graph with the same picture, letterbox and no suppression needed.
    np.testing.assert_allclose(result.scores, [0.8105], atol=1e-3)
    np.testing.assert_allclose(result.xyxy, [[173.24, 82.82, 274.03, 180.16]], atol=0.1)
