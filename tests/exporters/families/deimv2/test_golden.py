"""Against outputs of the official code, stored in float32 and float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.families.deimv2 import DEIMv2
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.load import LoadedModel, fill, load_model
from vtk.exporters.modules.deimv2 import DEIMv2Decoder
from vtk.exporters.modules.layers import MLP
from vtk.exporters.to_onnx import GraphFile, example_images, export_graphs
from vtk.postprocess.api import postprocess
from vtk.postprocess.matching import QueryMatch, match_queries
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import geometry_for

NAMES = ("deimv2_atto", "deimv2_pico", "deimv2_s_small")
FP32 = {"box_atol": 5e-6, "logit_atol": 1e-4}
FP64 = {"box_atol": 1e-6, "logit_atol": 1e-5}

Expected = dict[str, npt.NDArray[np.generic]]
Built = tuple[nn.Module, ModelSpec]


def expected_of(folder: Path, name: str) -> Expected:
    with np.load(folder / f"{name}_expected.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def loaded(golden_dir: Path) -> dict[str, LoadedModel]:
    return {name: load_model(read_checkpoint(golden_dir / f"{name}.pth"), FamilyOptions()) for name in NAMES}


def in_double(golden_dir: Path, name: str, change: Callable[[Any], None] | None = None) -> Built:
    """The module in float64, changed in some way before it is made ready to export."""
    checkpoint, family = read_checkpoint(golden_dir / f"{name}.pth"), DEIMv2()
    spec = family.infer(checkpoint, "official", FamilyOptions())
    module = family.build(spec)
    fill(module, family.remap(checkpoint, spec), family, source=name)
    if change is not None:
        change(module)
    return family.wrap(module.double(), spec), spec


def compare(model: nn.Module, spec: ModelSpec, expected: Expected, *, double: bool) -> QueryMatch:
    dtype, suffix = (torch.float64, "_f64") if double else (torch.float32, "")
    mean, std = (torch.tensor(value, dtype=dtype)[:, None, None] for value in (spec.recipe.mean, spec.recipe.std))
    with torch.inference_mode():
        logits, boxes = model((torch.from_numpy(expected["input_uint8"]).to(dtype) / 255 - mean) / std)
    wanted = (expected[f"pred_{kind}{suffix}"][0] for kind in ("logits", "boxes"))
    return match_queries(logits[0].numpy(), boxes[0].numpy(), *wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_official_outputs_are_reproduced(name: str, golden_dir: Path, loaded: dict[str, LoadedModel]) -> None:
    model, expected = loaded[name], expected_of(golden_dir, name)
    assert (model.report.fraction, model.report.unexpected) == (1, ())
    assert compare(model.wrapper, model.spec, expected, double=False).unmatched(**FP32) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_official_outputs_are_reproduced_in_double_precision(name: str, golden_dir: Path) -> None:
    model, spec = in_double(golden_dir, name)
    assert compare(model, spec, expected_of(golden_dir, name), double=True).unmatched(**FP64) == 0


@pytest.mark.parametrize("name", NAMES)
def test_rows_after_the_post_processor_are_the_official_ones(
    name: str, golden_dir: Path, loaded: dict[str, LoadedModel]
) -> None:
    spec, expected = loaded[name].spec, expected_of(golden_dir, name)
    raw = {
        output.name: expected[f"pred_{kind}"][0] for output, kind in zip(spec.outputs, ("logits", "boxes"), strict=True)
    }
    found = postprocess(raw, geometry_for(spec.recipe, (720, 1280)), replace(spec.post, score_threshold=0.0))
    assert isinstance(found, Detections)
    assert np.allclose(found.scores, expected["post_scores"][0], atol=1e-5)
    wanted_labels, wanted_boxes = expected["post_labels"][0], expected["post_boxes"][0]
    for label in np.unique(wanted_labels):
        ours, theirs = found.xyxy[found.class_ids == label], wanted_boxes[wanted_labels == label]
        assert np.allclose(np.sort(ours, axis=0), np.sort(theirs, axis=0), atol=0.05)


def test_every_number_is_inferred(loaded: dict[str, LoadedModel]) -> None:
    atto, pico, small = (loaded[name].spec for name in NAMES)
    wanted = {
        "encoder": "lite", "levels": 2, "in_channels": (256,), "hidden": 64, "fusion_width": 10, "bottlenecks": 2,
        "dim": 64, "decoder_ffn": 160, "gateway": False, "layers": 3, "heads": 8, "points": (4, 2), "classes": 80,
        "reg_max": 32, "reg_scale": 4.0, "up": 0.5, "queries": 100,
    }  # fmt: skip
    assert {key: atto.config[key] for key in wanted} == wanted
    assert (atto.variant, atto.input_hw, pico.variant, pico.input_hw) == ("Atto", (320, 320), "Pico", (640, 640))
    assert (pico.config["in_channels"], pico.config["hidden"], pico.config["queries"]) == ((512,), 112, 200)
    assert (small.variant, small.input_hw, small.num_classes) == ("custom", (320, 320), 11)
    sta = small.config["sta"]
    assert (sta["planes"], sta["hidden"], sta["after"]) == (8, 64, (3, 7, 11))
    vit = {"dim": 64, "depth": 12, "heads": 2, "ffn": "mlp", "ffn_dim": 256, "registers": 0, "norm_eps": 1e-6}
    assert {key: sta["vit"][key] for key in vit} == vit
    assert (sta["vit"]["layer_scale"], sta["vit"]["final_norm"], small.config["encoder"]) == (False, False, "sum")


def deploy(state: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """What the official deploy() leaves: fused convolutions in the encoder, and the last layer's heads."""
    for block in {key.split(".conv1.")[0] for key in state if ".bottlenecks." in key and ".conv1." in key}:
        wide, wide_bias = pop_fused(state, f"{block}.conv1")
        point, point_bias = pop_fused(state, f"{block}.conv2")
        wide[:, :, 1, 1] += point[:, :, 0, 0]
        state |= {f"{block}.conv.weight": wide, f"{block}.conv.bias": wide_bias + point_bias}
    norms = [key.removesuffix(".norm.running_var") for key in state if key.endswith(".norm.running_var")]
    for prefix in [key for key in norms if key.startswith("encoder.") and "input_proj" not in key]:
        weight, bias = pop_fused(state, prefix)
        state |= {f"{prefix}.conv_bn_fused.weight": weight, f"{prefix}.conv_bn_fused.bias": bias}
    earlier = tuple(f"{part}.{i}." for part in ("lqe_layers", "dec_score_head") for i in range(layers - 1))
    return {key: tensor for key, tensor in state.items() if not any(part in key for part in earlier)}


def pop_fused(state: dict[str, torch.Tensor], prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
    weight = state.pop(f"{prefix}.conv.weight")
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    gamma, beta, mean, variance, _ = (state.pop(f"{prefix}.norm.{name}") for name in names)
    factor = gamma / (variance + 1e-5).sqrt()
    return weight * factor[:, None, None, None], beta - mean * factor


@pytest.mark.parametrize("name", [NAMES[0], NAMES[2]])
def test_a_deployed_file_gives_the_same_outputs(name: str, golden_dir: Path, loaded: dict[str, LoadedModel]) -> None:
    checkpoint = read_checkpoint(golden_dir / f"{name}.pth")
    deployed = replace(checkpoint, tensors=deploy(dict(checkpoint.tensors), loaded[name].spec.config["layers"]))
    model = load_model(deployed, FamilyOptions())
    assert model.spec.layout == "official-deploy"
    assert model.spec.config == loaded[name].spec.config
    assert compare(model.wrapper, model.spec, expected_of(golden_dir, name), double=False).unmatched(**FP32) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_averaged_weights_of_a_training_file_are_taken(
    name: str, golden_dir: Path, tmp_path: Path, loaded: dict[str, LoadedModel]
) -> None:
    """Case V32."""
    tensors = dict(read_checkpoint(golden_dir / f"{name}.pth").tensors)
    raw = {key: value + 1 if value.is_floating_point() else value for key, value in tensors.items()}
    ema = {"module": {f"module.{key}": value for key, value in tensors.items()}, "updates": 3}
    torch.save({"model": raw, "ema": ema, "last_epoch": 1}, tmp_path / "train.pth")
    model = load_model(read_checkpoint(tmp_path / "train.pth"), FamilyOptions())
    assert (model.checkpoint.weights, model.spec.config) == ("ema.module", loaded[name].spec.config)
    for key, value in loaded[name].wrapper.state_dict().items():
        assert torch.equal(model.wrapper.state_dict()[key], value)


# --- the departures of transformers' port, each of which would give plausible but wrong boxes


def relu_heads(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, MLP):
            module.act = nn.ReLU()


def norm_before_the_selection(model: Any) -> None:
    norm = nn.LayerNorm(model.decoder.config.dim).double()
    model.decoder._candidates = norm.forward


def final_norm(model: Any) -> None:
    model.backbone.dinov3.norm = nn.LayerNorm(model.backbone.dinov3.config.dim)


def other_epsilon(model: Any) -> None:
    for block in model.backbone.dinov3.blocks:
        block.norm1.eps = block.norm2.eps = 1e-5


def position_in_every_layer(model: Any) -> None:
    decoder: DEIMv2Decoder = model.decoder
    position = super(DEIMv2Decoder, decoder)._position
    model.decoder._position = lambda boxes, before: position(boxes, None)


DEPARTURES = (relu_heads, norm_before_the_selection, final_norm, other_epsilon, position_in_every_layer)


@pytest.mark.parametrize("departure", DEPARTURES)
def test_each_departure_of_the_other_port_is_noticed(departure: Callable[[Any], None], golden_dir: Path) -> None:
    model, spec = in_double(golden_dir, NAMES[2], departure)
    assert compare(model, spec, expected_of(golden_dir, NAMES[2]), double=True).unmatched(**FP64) > 0


# --- export


@pytest.fixture(scope="module")
def graphs(
    loaded: dict[str, LoadedModel], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[GraphFile, ...]]:
    batches = {"deimv2_atto": (1, 2), "deimv2_s_small": (2,)}
    return {
        name: export_graphs(loaded[name], sizes, tmp_path_factory.mktemp(name), progress=lambda _: None)
        for name, sizes in batches.items()
    }


def run(graph: GraphFile, images: torch.Tensor) -> list[npt.NDArray[np.float32]]:
    session = ort.InferenceSession(graph.path, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"images": images.numpy()}))


def test_graphs_give_the_official_outputs_in_every_row(
    golden_dir: Path, loaded: dict[str, LoadedModel], graphs: dict[str, tuple[GraphFile, ...]]
) -> None:
    for name, files in graphs.items():
        expected, recipe = expected_of(golden_dir, name), loaded[name].spec.recipe
        mean, std = (torch.tensor(value)[:, None, None] for value in (recipe.mean, recipe.std))
        image = (torch.from_numpy(expected["input_uint8"]).float() / 255 - mean) / std
        for graph in files:
            logits, boxes = run(graph, image.expand(graph.batch, -1, -1, -1))
            for row in range(graph.batch):
                match = match_queries(logits[row], boxes[row], expected["pred_logits"][0], expected["pred_boxes"][0])
                assert match.unmatched(box_atol=1e-5, logit_atol=1e-3) == 0


def test_rows_of_a_batch_do_not_see_each_other(
    loaded: dict[str, LoadedModel], graphs: dict[str, tuple[GraphFile, ...]]
) -> None:
    """The mean over the whole map, and the class token, are those of one picture."""
    for name, files in graphs.items():
        first, second = example_images(loaded[name], batch=2)
        same, mixed = run(files[-1], torch.stack([second, second])), run(files[-1], torch.stack([first, second]))
        for twice, pair in zip(same, mixed, strict=True):
            assert np.array_equal(twice[0], twice[1])
            assert np.array_equal(twice[1], pair[1])


def test_graphs_are_static_and_plain(graphs: dict[str, tuple[GraphFile, ...]]) -> None:
    forbidden = {"If", "Loop", "Scan", "NonZero", "Range", "Unique", "Where", "ScatterND", "Cast", "Sin", "Cos", "Tile"}
    for graph in (file for files in graphs.values() for file in files):
        proto = onnx.shape_inference.infer_shapes(onnx.load(graph.path), strict_mode=True).graph
        values = [*proto.input, *proto.output, *proto.value_info]
        assert all(dim.HasField("dim_value") for value in values for dim in value.type.tensor_type.shape.dim)
        assert onnx.TensorProto.DOUBLE not in {value.type.tensor_type.elem_type for value in values}
        assert forbidden.isdisjoint(node.op_type for node in proto.node)
        assert "BatchNormalization" not in {node.op_type for node in proto.node}
