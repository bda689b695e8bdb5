"""Half-precision graphs of every family give the results of their float32 source on real pictures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import save_file

import vtk
from vtk.bundle import read_bundle
from vtk.exporters.family import FamilyOptions
from vtk.exporters.modules.dino_vit import DinoViT, ViTConfig
from vtk.exporters.modules.yolov8 import YOLOv8Config, YOLOv8Model
from vtk.exporters.onnx_weights import WEIGHTS_NAME
from vtk.exporters.precision_terms import Precision

InPrecision = Callable[[Path, Precision, Path], Path]

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
YOLO = YOLOv8Config((8, 16, 24, 32, 40), (1, 2, 3, 1, 2, 1, 1, 2), 3, box_channels=16, class_channels=24, reg_max=16)


@dataclass(frozen=True)
class Source:
    """min_half: the least share of parameters in half precision with fp16, and with mixed."""

    make: Callable[[Path], Path]
    options: FamilyOptions
    min_half: tuple[float, float]


def golden(name: str) -> Callable[[Path], Path]:
    return lambda folder: GOLDEN / name


def yolo(folder: Path) -> Path:
    """Random weights, tame enough for two float32 runtimes to agree behind non-maximum suppression."""
    torch.manual_seed(0)
    module = YOLOv8Model(YOLO).eval()
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point() and ".dfl." not in name:
            tensor.normal_(std=0.3)
            if name.endswith("bn.weight"):
                tensor.add_(1)
            elif tensor.ndim == 4:
                tensor.mul_(2 / tensor[0].numel() ** 0.5)
    for level in range(3):
        module.state_dict()[f"model.22.cv3.{level}.2.bias"].sub_(3)  # few objects, as in pictures
    save_file(dict(module.state_dict()), folder / "yolo.safetensors")
    return folder / "yolo.safetensors"


def dinov2(folder: Path) -> Path:
    torch.manual_seed(0)
    config = ViTConfig(
        dim=64, depth=3, heads=1, ffn="mlp", ffn_dim=256, activation="gelu", patch=14, registers=0, qkv_bias=True,
        norm_eps=1e-6, pos_side=4, pos_interpolation="bicubic_offset",
    )  # fmt: skip
    save_file(DinoViT(config).state_dict(), folder / "dinov2.safetensors")
    return folder / "dinov2.safetensors"


def timm_model(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import timm

        torch.manual_seed(0)
        save_file(timm.create_model(name, pretrained=False).state_dict(), folder / f"{name}.safetensors")
        return folder / f"{name}.safetensors"

    return make


SOURCES = {
    "dinov3-mlp": Source(golden("dinov3_vit_mlp.pth"), FamilyOptions(size_hw=(64, 64)), (0.95, 0.8)),
    "dinov3-swiglu": Source(golden("dinov3_vit_swiglu.pth"), FamilyOptions(size_hw=(64, 64)), (0.95, 0.7)),
    "dinov3-convnext": Source(golden("dinov3_convnext.pth"), FamilyOptions(size_hw=(64, 64)), (0.95, 0.9)),
    "dinov2": Source(dinov2, FamilyOptions(size_hw=(56, 56)), (0.95, 0.7)),
    "toy-deim": Source(golden("toy_deim.pth"), FamilyOptions(family="deim"), (0.95, 0.7)),
    "dfine": Source(golden("dfine_n.pth"), FamilyOptions(family="dfine", size_hw=(160, 160)), (0.95, 0.6)),
    "yolov8": Source(yolo, FamilyOptions(size_hw=(128, 128)), (0.95, 0.9)),
    "timm-vit": Source(timm_model("test_vit"), FamilyOptions(timm_name="test_vit"), (0.95, 0.5)),
    "timm-resnet": Source(timm_model("test_resnet"), FamilyOptions(timm_name="test_resnet"), (0.95, 0.7)),
}


@pytest.fixture(scope="module", params=list(SOURCES))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Source]:
    """The float32 bundle of one family, on two pictures."""
    source = SOURCES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    pictures = folder / "pictures"
    pictures.mkdir()
    for name in ("000.jpg", "011.png"):
        shutil.copy(GOLDEN / "toy_images" / name, pictures)
    checkpoint = source.make(folder)
    root = vtk.export(checkpoint, folder / "fp32", batches=[1], options=source.options, images=pictures)
    return root, source


@pytest.mark.parametrize("precision", ["fp16", "mixed"])
def test_half_precision_passes_on_real_pictures(
    precision: Precision, bundle: tuple[Path, Source], in_precision: InPrecision, tmp_path: Path
) -> None:
    root, source = bundle
    cast = in_precision(root, precision, tmp_path / precision)
    report = vtk.verify(cast, backend="ort")
    assert report.first_failure is None
    assert {"engine", "rounding"} <= {check.stage for check in report.checks}
    (artifact,) = read_bundle(cast).manifest.artifacts
    least = source.min_half[precision == "mixed"]
    assert least <= float(artifact.builder["half_parameters"]) <= 1
    assert smaller(cast, root)
    check_graph(onnx.load(cast / artifact.file))


def smaller(cast: Path, root: Path) -> bool:
    """Weights take less room; the float32 twin shares them."""
    size = [(folder / WEIGHTS_NAME).stat().st_size for folder in (cast, root)]
    return size[0] < 0.85 * size[1]


def check_graph(model: onnx.ModelProto) -> None:
    """Case V14: float32 outside, at every softmax and norm, and at the product that feeds a softmax."""
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    types |= {tensor.name: tensor.data_type for tensor in inferred.graph.initializer}
    makers = {name: node for node in inferred.graph.node for name in node.output}
    ends = (*model.graph.input, *model.graph.output)
    assert {value.type.tensor_type.elem_type for value in ends} == {onnx.TensorProto.FLOAT}
    for node in inferred.graph.node:
        if node.op_type in ("Softmax", "LayerNormalization"):
            assert types[node.input[0]] == onnx.TensorProto.FLOAT
        if node.op_type == "Softmax" and node.input[0] in makers and makers[node.input[0]].op_type == "MatMul":
            product = makers[node.input[0]]
            assert {types[name] for name in product.input} == {onnx.TensorProto.FLOAT}
