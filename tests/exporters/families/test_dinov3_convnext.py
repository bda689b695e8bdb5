from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import timm
import torch
from torch import nn
from transformers import DINOv3ConvNextConfig, DINOv3ConvNextModel

from vtk.errors import UnknownFamilyError, UsageError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.dinov3_convnext import DINOv3ConvNext
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model
from vtk.exporters.registry import recognize
from vtk.exporters.to_onnx import export_graphs
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

NO_OPTIONS = FamilyOptions()
DEPTHS, DIMS = (1, 2, 1, 1), (8, 16, 24, 32)

Tensors = dict[str, torch.Tensor]
Make = Callable[..., Checkpoint]
Run = Callable[..., dict[str, torch.Tensor]]
Randomize = Callable[[nn.Module, int], nn.Module]


@pytest.fixture(scope="module")
def official(golden_dir: Path) -> Checkpoint:
    return read_checkpoint(golden_dir / "dinov3_convnext.pth")


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(5))


def distance(outputs: Tensors, cls: torch.Tensor, patches: torch.Tensor) -> float:
    wanted = {"cls": cls, "patches": patches}
    assert outputs.keys() == wanted.keys()
    assert all(outputs[name].shape == wanted[name].shape for name in wanted)
    return max(float((outputs[name] - wanted[name]).abs().max()) for name in wanted)


@pytest.mark.parametrize("size", ["224x224", "192x320"])
def test_equals_the_official_code(size: str, official: Checkpoint, golden_dir: Path, run_model: Run) -> None:
    with np.load(golden_dir / "dinov3_inputs.npz") as stored:
        pixels = torch.from_numpy(stored[f"input_{size}"])
    with np.load(golden_dir / "dinov3_convnext_expected.npz") as stored:
        expected = [torch.from_numpy(stored[f"{key}_{size}"]) for key in ("cls", "patch")]
    assert distance(run_model(official, pixels), *expected) < 1e-5


def test_infers_every_number_from_the_tensors(official: Checkpoint) -> None:
    spec = load_model(official, NO_OPTIONS).spec
    assert (spec.family, spec.variant, spec.layout, spec.task) == ("dinov3-convnext", "custom", "official", "embed")
    facts = {"depths": (2, 1, 3, 2), "dims": (16, 32, 64, 128), "norm_eps": 1e-6, "grid_hw": (8, 8)}
    assert {key: spec.config[key] for key in facts} == facts
    assert spec.recipe == Recipe((256, 256), "stretch", "pil_bilinear", IMAGENET_MEAN, IMAGENET_STD)


@pytest.mark.parametrize(
    ("depths", "dims", "variant"),
    [
        ((3, 3, 9, 3), (96, 192, 384, 768), "ConvNeXt-T"),
        ((3, 3, 27, 3), (96, 192, 384, 768), "ConvNeXt-S"),
        ((3, 3, 27, 3), (128, 256, 512, 1024), "ConvNeXt-B"),
        ((3, 3, 27, 3), (192, 384, 768, 1536), "ConvNeXt-L"),
    ],
)
def test_names_the_released_variants(
    depths: tuple[int, ...], dims: tuple[int, ...], variant: str, make_checkpoint: Make
) -> None:
    tensors = {
        f"stages.{stage}.{block}.gamma": torch.empty(dims[stage], device="meta")
        for stage in range(4)
        for block in range(depths[stage])
    }
    assert DINOv3ConvNext().infer(make_checkpoint(tensors), "official", NO_OPTIONS).variant == variant


def to_hf(official: Tensors) -> Tensors:
    renamed = {}
    for key, value in official.items():
        new = re.sub(r"^downsample_layers\.(\d)\.", r"model.stages.\1.downsample_layers.", key)
        new = re.sub(r"^stages\.(\d)\.(\d+)\.norm\.", r"stages.\1.\2.layer_norm.", new)
        new = re.sub(r"^stages\.(\d)\.", r"model.stages.\1.layers.", new)
        new = new.replace("dwconv", "depthwise_conv").replace("pwconv", "pointwise_conv")
        if not key.startswith("norms."):
            renamed[re.sub(r"^norm\.", "layer_norm.", new)] = value
    return renamed


def to_timm(official: Tensors) -> Tensors:
    renamed = {}
    for key, value in official.items():
        new = re.sub(r"^downsample_layers\.0\.", "stem.", key)
        new = re.sub(r"^downsample_layers\.(\d)\.", r"stages.\1.downsample.", new)
        new = re.sub(r"^stages\.(\d)\.(\d+)\.", r"stages.\1.blocks.\2.", new)
        new = new.replace("dwconv", "conv_dw").replace("pwconv", "mlp.fc")
        if not key.startswith("norms."):
            renamed[re.sub(r"^norm\.", "head.norm.", new)] = value
    return renamed


@pytest.mark.parametrize("layout", ["hf", "timm"])
def test_other_layouts_give_the_same_outputs(
    layout: str, official: Checkpoint, images: torch.Tensor, make_checkpoint: Make, run_model: Run
) -> None:
    converted = make_checkpoint({"hf": to_hf, "timm": to_timm}[layout](dict(official.tensors)))
    assert recognize(converted, NO_OPTIONS)[1] == layout
    outputs, wanted = run_model(converted, images), run_model(official, images)
    assert all(torch.equal(outputs[name], wanted[name]) for name in wanted)


def test_equals_transformers(images: torch.Tensor, make_checkpoint: Make, run_model: Run, randomize: Randomize) -> None:
    config = DINOv3ConvNextConfig(hidden_sizes=list(DIMS), depths=list(DEPTHS), layer_norm_eps=1e-2)
    peer = randomize(DINOv3ConvNextModel(config), 1)
    with torch.inference_mode():
        tokens = peer(images).last_hidden_state
    outputs = run_model(make_checkpoint(peer.state_dict(), config=config.to_dict()), images)
    assert distance(outputs, tokens[:, 0], tokens[:, 1:]) < 1e-5


def test_equals_timm(images: torch.Tensor, make_checkpoint: Make, run_model: Run, randomize: Randomize) -> None:
    peer = randomize(timm.create_model("convnext_tiny", depths=DEPTHS, dims=DIMS, num_classes=0), 2)
    with torch.inference_mode():
        wanted = peer(images)
    assert float((run_model(make_checkpoint(peer.state_dict()), images)["cls"] - wanted).abs().max()) < 1e-5


def test_a_classifier_is_not_this_family(make_checkpoint: Make) -> None:
    peer = timm.create_model("convnext_tiny", depths=DEPTHS, dims=DIMS, num_classes=3)
    with pytest.raises(UnknownFamilyError, match="--timm-name"):
        recognize(make_checkpoint(peer.state_dict()), NO_OPTIONS)


def test_sizes_are_multiples_of_the_stride(official: Checkpoint) -> None:
    with pytest.raises(UsageError, match="224,224 or 256,224"):
        load_model(official, FamilyOptions(size_hw=(240, 224)))


def test_any_tensor_without_a_place_is_an_error(official: Checkpoint, make_checkpoint: Make) -> None:
    tensors = dict(official.tensors) | {"norms.2.weight": torch.ones(64)}
    with pytest.raises(WeightsMismatchError, match=r"norms\.2\.weight"):
        load_model(make_checkpoint(tensors), NO_OPTIONS)


def test_graph_reproduces_the_module(official: Checkpoint, images: torch.Tensor, tmp_path: Path) -> None:
    loaded = load_model(official, FamilyOptions(size_hw=(64, 96)))
    (graph,) = export_graphs(loaded, [2], tmp_path, progress=lambda _: None)
    assert graph.lint.errors == ()
    assert not {"If", "Range", "Tile", "Loop"} & graph.lint.op_counts.keys()
    session = ort.InferenceSession(str(graph.path), providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        wanted = loaded.wrapper(images)
    came = session.run(["cls", "patches"], {"images": images.numpy()})
    assert max(float(np.abs(a - b.numpy()).max()) for a, b in zip(came, wanted, strict=True)) < 1e-5
