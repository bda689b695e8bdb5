from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from vtk.errors import CheckpointError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.dfine import DFine
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import LoadedModel, fill, load_model
from vtk.postprocess.api import postprocess
from vtk.postprocess.matching import QueryMatch, match_queries
from vtk.postprocess.recipe import PostRecipe
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import geometry_for

Load = Callable[..., LoadedModel]
Expected = dict[str, npt.NDArray[np.generic]]
Outputs = tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]

FP32 = {"box_atol": 1e-4, "logit_atol": 1e-3}
FP64 = {"box_atol": 1e-6, "logit_atol": 1e-5}


def expected_of(path: Path) -> Expected:
    with np.load(path) as file:
        return dict(file)


def run(model: torch.nn.Module, expected: Expected, dtype: torch.dtype = torch.float32) -> Outputs:
    images = torch.from_numpy(expected["input_uint8"]).to(dtype) / 255
    with torch.inference_mode():
        logits, boxes = model(images)
    return logits[0].numpy(), boxes[0].numpy()


def compare(outputs: Outputs, expected: Expected, prefix: str = "", suffix: str = "") -> QueryMatch:
    logits, boxes = expected[f"{prefix}pred_logits{suffix}"][0], expected[f"{prefix}pred_boxes{suffix}"][0]
    return match_queries(*outputs, logits, boxes)


def in_double(checkpoint: Checkpoint, family: str) -> torch.nn.Module:
    model = DFine()
    spec = model.infer(checkpoint, "official", FamilyOptions(family=family))
    module = model.build(spec)
    fill(module, model.remap(checkpoint, spec), model, source=checkpoint.path.name)
    return model.wrap(module.double(), spec)


@pytest.mark.parametrize(("family", "prefix", "other"), [("dfine", "", "wrong_silu_"), ("deim", "wrong_silu_", "")])
def test_both_readings_of_dfine_n_give_what_their_official_code_gives(
    golden: Path, load: Load, family: str, prefix: str, other: str
) -> None:
    expected = expected_of(golden / "dfine_n_expected.npz")
    outputs = run(load(golden / "dfine_n.pth", family=family).wrapper, expected)
    assert compare(outputs, expected, prefix).unmatched(**FP32) == 0
    assert compare(outputs, expected, other).unmatched(**FP32) > 100


@pytest.mark.parametrize(("family", "prefix"), [("dfine", ""), ("deim", "wrong_silu_")])
def test_dfine_n_in_double_precision(golden: Path, family: str, prefix: str) -> None:
    expected = expected_of(golden / "dfine_n_expected.npz")
    outputs = run(in_double(read_checkpoint(golden / "dfine_n.pth"), family), expected, torch.float64)
    assert compare(outputs, expected, prefix, "_f64").unmatched(**FP64) == 0


def test_rows_after_the_post_processor_are_the_official_ones(golden: Path, load: Load) -> None:
    expected = expected_of(golden / "dfine_n_expected.npz")
    loaded = load(golden / "dfine_n.pth", family="dfine")
    names = [output.name for output in loaded.spec.outputs]
    raw = dict(zip(names, run(loaded.wrapper, expected), strict=True))
    every_row = replace(loaded.spec.post, score_threshold=0.0)
    found = postprocess(raw, geometry_for(loaded.spec.recipe, (720, 1280)), every_row)
    assert isinstance(found, Detections)
    assert found.resolution_wh == (1280, 720)
    assert np.allclose(found.scores, expected["post_scores"][0], atol=1e-5)
    # Scores closer than rounding noise may swap rows: compare label by label, each sorted by its first coordinate.
    wanted_labels, wanted_boxes = expected["post_labels"][0], expected["post_boxes"][0]
    for label in np.unique(wanted_labels):
        ours, theirs = found.xyxy[found.class_ids == label], wanted_boxes[wanted_labels == label]
        assert np.allclose(np.sort(ours, axis=0), np.sort(theirs, axis=0), atol=0.05)


def test_every_number_of_dfine_n_is_inferred(golden: Path, load: Load) -> None:
    spec = load(golden / "dfine_n.pth", family="dfine").spec
    wanted = {
        "backbone": "B0", "lab": True, "frozen_bn": False, "levels": 2, "strides": (16, 32),
        "in_channels": (512, 1024), "hidden": 128, "encoder_ffn": 512, "encoder_heads": 8, "encoder_layers": 1,
        "fusion_width": 21, "expansion": 0.34, "bottlenecks": 2, "dim": 128, "decoder_ffn": 512, "layers": 3,
        "heads": 8, "points": (6, 6), "classes": 80, "reg_max": 32, "reg_scale": 4.0, "up": 0.5, "queries": 300,
        "activation": "relu",
    }  # fmt: skip
    assert {key: spec.config[key] for key in wanted} == wanted
    assert (spec.family, spec.variant, spec.layout, spec.input_hw) == ("dfine", "N", "official", (640, 640))
    assert spec.post == PostRecipe("detr", score_threshold=0.3, max_detections=300)


def test_the_recipe_is_the_training_one(golden: Path, load: Load) -> None:
    """Case V38: stretch, no letterbox, no mean and std; a box of the network input lands where training put it."""
    recipe = load(golden / "dfine_n.pth", family="dfine").spec.recipe
    assert (recipe.resize, recipe.interpolation, recipe.size_hw) == ("stretch", "pil_bilinear", (640, 640))
    assert (recipe.mean, recipe.std) == ((0, 0, 0), (1, 1, 1))
    box = np.array([[320.0, 320, 480, 400]])
    assert np.allclose(geometry_for(recipe, (720, 1280)).boxes_to_source(box), [[640, 360, 960, 450]])


@pytest.mark.parametrize(
    ("file_name", "family"),
    [("best.pth", "dfine"), ("dfine_n_coco.pth", "dfine"), ("deim_dfine_hgnetv2_n_coco_160e.pth", "deim")],
)
def test_without_the_flag_the_activation_is_a_loud_choice(golden: Path, file_name: str, family: str) -> None:
    checkpoint = replace(read_checkpoint(golden / "dfine_n.pth"), path=Path(file_name))
    spec = DFine().infer(checkpoint, "official", FamilyOptions())
    choice = spec.choices[0]
    assert (choice.value, choice.assumed, choice.flag) == (family, True, "--family")
    assert choice.alternatives == ("dfine", "deim")
    assert spec.family == family
    assert "ReLU" in choice.reason


@pytest.mark.parametrize("family", ["dfine", "deim"])
def test_the_flag_decides_and_is_not_loud(golden: Path, load: Load, family: str) -> None:
    loaded = load(golden / "dfine_n.pth", family=family)
    assert loaded.spec.family == family
    assert not loaded.spec.choices[0].assumed


def test_a_deployed_file_gives_the_same_outputs(golden: Path, load: Load) -> None:
    """The official deploy() fuses the encoder's norms and drops the heads of the earlier layers."""
    expected = expected_of(golden / "dfine_n_expected.npz")
    checkpoint = read_checkpoint(golden / "dfine_n.pth")
    deployed = replace(checkpoint, tensors=deploy(dict(checkpoint.tensors)))
    loaded = load_model(deployed, FamilyOptions(family="dfine"))
    assert loaded.spec.layout == "official-deploy"
    assert loaded.spec.config == load(golden / "dfine_n.pth", family="dfine").spec.config
    assert compare(run(loaded.wrapper, expected), expected).unmatched(**FP32) == 0


@pytest.mark.parametrize("bias", [None, torch.zeros(()), torch.zeros(5)])
def test_a_fused_kernel_needs_its_bias(golden: Path, bias: torch.Tensor | None) -> None:
    checkpoint = read_checkpoint(golden / "dfine_n.pth")
    tensors = deploy(dict(checkpoint.tensors))
    key = "encoder.lateral_convs.0.conv_bn_fused.bias"
    del tensors[key]
    damaged = tensors if bias is None else tensors | {key: bias}
    with pytest.raises(CheckpointError, match=r"lateral_convs\.0\.conv_bn_fused\.weight.*bias of its width"):
        load_model(replace(checkpoint, tensors=damaged), FamilyOptions(family="dfine"))


def deploy(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for block in {key.split(".conv1.")[0] for key in state if ".bottlenecks." in key and ".conv1." in key}:
        wide, wide_bias = pop_fused(state, f"{block}.conv1")
        point, point_bias = pop_fused(state, f"{block}.conv2")
        wide[:, :, 1, 1] += point[:, :, 0, 0]
        state |= {f"{block}.conv.weight": wide, f"{block}.conv.bias": wide_bias + point_bias}
    fused = [key.removesuffix(".norm.weight") for key in state if key.startswith("encoder.") and ".norm.w" in key]
    for prefix in [prefix for prefix in fused if "input_proj" not in prefix]:
        weight, bias = pop_fused(state, prefix)
        state |= {f"{prefix}.conv_bn_fused.weight": weight, f"{prefix}.conv_bn_fused.bias": bias}
    earlier = ("lqe_layers.0.", "lqe_layers.1.", "dec_score_head.0.", "dec_score_head.1.")
    return {key: tensor for key, tensor in state.items() if not any(part in key for part in earlier)}


def pop_fused(state: dict[str, torch.Tensor], prefix: str) -> tuple[torch.Tensor, torch.Tensor]:
    weight = state.pop(f"{prefix}.conv.weight")
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    gamma, beta, mean, variance, _ = (state.pop(f"{prefix}.norm.{name}") for name in names)
    factor = gamma / (variance + 1e-5).sqrt()
    return weight * factor[:, None, None, None], beta - mean * factor


def test_missing_norm_counters_are_benign_and_a_missing_weight_is_not(golden: Path) -> None:
    """Cases V29, V30, V32."""
    checkpoint = read_checkpoint(golden / "dfine_n.pth")
    bare = {key: value for key, value in checkpoint.tensors.items() if not key.endswith("num_batches_tracked")}
    assert load_model(replace(checkpoint, tensors=bare), FamilyOptions(family="dfine")).report.missing == ()
    del bare["decoder.decoder.lqe_layers.2.reg_conf.layers.1.bias"]
    with pytest.raises(WeightsMismatchError, match=r"lqe_layers\.2\.reg_conf\.layers\.1\.bias"):
        load_model(replace(checkpoint, tensors=bare), FamilyOptions(family="dfine"))


def test_a_tensor_without_a_place_is_refused_however_small(golden: Path) -> None:
    checkpoint = read_checkpoint(golden / "dfine_n.pth")
    more = {**checkpoint.tensors, "decoder.tgt_embed.weight": torch.zeros(300, 1)}
    with pytest.raises(WeightsMismatchError, match=r"decoder\.tgt_embed\.weight"):
        load_model(replace(checkpoint, tensors=more), FamilyOptions(family="dfine"))


def test_a_file_of_a_parallel_run_loads_whole(golden: Path, tmp_path: Path, load: Load) -> None:
    """Case V29: a `module.` prefix must neither hide the weights nor leave random ones."""
    tensors = read_checkpoint(golden / "dfine_n.pth").tensors
    path = tmp_path / "parallel.pth"
    torch.save({"model": {f"module.{key}": value for key, value in tensors.items()}}, path)
    expected = expected_of(golden / "dfine_n_expected.npz")
    loaded = load(path, family="dfine")
    assert loaded.checkpoint.stripped == ("module.",)
    assert loaded.report.fraction == 1
    assert compare(run(loaded.wrapper, expected), expected).unmatched(**FP32) == 0


@pytest.mark.parametrize(
    ("weights", "family", "prefix"),
    [(None, "deim", ""), (None, "dfine", "wrong_relu_"), ("model", "deim", "wrong_rawmodel_")],
)
def test_deim_n_as_ema_with_relu_and_as_raw_weights(
    full_golden: Path, load: Load, weights: str | None, family: str, prefix: str
) -> None:
    """Case V32: each choice gives exactly what the official code gives for it, and nothing else."""
    expected = expected_of(full_golden / "deim_n_expected.npz")
    loaded = load(full_golden / "deim_n.pth", weights=weights, family=family)
    outputs = run(loaded.wrapper, expected)
    for other in ("", "wrong_relu_", "wrong_rawmodel_"):
        unmatched = compare(outputs, expected, other).unmatched(**FP32)
        assert (unmatched == 0) == (other == prefix)
    assert loaded.checkpoint.weights == (weights or "ema.module")


def test_deim_n_in_double_precision(full_golden: Path) -> None:
    expected = expected_of(full_golden / "deim_n_expected.npz")
    outputs = run(in_double(read_checkpoint(full_golden / "deim_n.pth"), "deim"), expected, torch.float64)
    assert compare(outputs, expected, "", "_f64").unmatched(**FP64) == 0
