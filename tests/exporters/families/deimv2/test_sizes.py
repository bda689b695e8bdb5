from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vtk.errors import CheckpointError, UsageError, VtkError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.coco import COCO_CATEGORY_IDS, COCO_NAMES
from vtk.exporters.families.deimv2 import DEIMv2
from vtk.exporters.families.deimv2_config import DEIMv2Config, build_model
from vtk.exporters.families.deimv2_infer import infer_config
from vtk.exporters.families.deimv2_layout import own_names
from vtk.exporters.families.dfine import DFine
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import fill
from vtk.exporters.modules.fold import fold_batch_norms, merge_rep_vgg
from vtk.exporters.registry import recognize
from vtk.postprocess.recipe import PostRecipe
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD

# tensors, millions of parameters in training and after the official deploy(), side, queries
PUBLISHED = {
    "Atto": (493, 0.51, 0.49, 320, 100),
    "Femto": (493, 0.98, 0.96, 416, 150),
    "Pico": (551, 1.54, 1.51, 640, 200),
    "N": (639, 3.60, 3.57, 640, 300),
    "S": (673, 9.78, 9.71, 640, 300),
    "M": (769, 18.36, 18.11, 640, 300),
    "L": (809, 32.55, 32.18, 640, 300),
    "X": (989, 51.21, 50.26, 640, 300),
}
HEAD_OF_A_LATER_LAYER = re.compile(r"decoder\.dec_bbox_head\.[1-9].*")
STATISTICS = (
    "running_mean", "running_var", "num_batches_tracked", "anchors", "valid_mask", "num_points_scale", "bias_mask",
    "periods",
)  # fmt: skip


def after_of(config: DEIMv2Config) -> tuple[int, int, int]:
    return config.sta.after if config.sta else (3, 7, 11)


def num_trained(state: dict[str, torch.Tensor], config: DEIMv2Config) -> int:
    """Parameters as training counts them: a shared head once, `up` and `reg_scale` once."""
    shared = config.encoder == "lite"
    names = [key for key in state if not key.endswith(STATISTICS) and not key.startswith("decoder.decoder.up")]
    names = [key for key in names if key != "decoder.decoder.reg_scale"]
    return sum(state[key].numel() for key in names if not (shared and HEAD_OF_A_LATER_LAYER.fullmatch(key)))


def num_deployed(config: DEIMv2Config) -> int:
    """Parameters after deploy(): fused in the encoder but for its projections, and only the last layer's heads."""
    with torch.device("meta"):
        module = build_model(config, input_hw=(64, 64), queries=9)
    unfused = {key: getattr(module.encoder, key) for key in ("input_proj", "down_sample1", "down_sample2")
               if hasattr(module.encoder, key)}  # fmt: skip
    for key in unfused:
        setattr(module.encoder, key, nn.Identity())
    fold_batch_norms(module.encoder)
    merge_rep_vgg(module.encoder)
    for key, part in unfused.items():
        setattr(module.encoder, key, part)
    shared = config.encoder == "lite"
    own = {k: p for k, p in module.named_parameters() if not (shared and HEAD_OF_A_LATER_LAYER.fullmatch(k))}
    return sum(parameter.numel() for parameter in own.values()) + (config.classes + 1) * config.dim


@pytest.mark.parametrize("variant", PUBLISHED)
def test_every_published_size_has_the_official_keys_and_counts_and_is_inferred(
    variant: str, files: SimpleNamespace
) -> None:
    num_keys, trained, deployed, side, queries = PUBLISHED[variant]
    config = files.official_config(variant)
    state = files.meta_state(config, (side, side))
    assert len(state) == num_keys
    assert num_trained(state, config) / 1e6 == pytest.approx(trained, abs=0.005)
    assert num_deployed(config) / 1e6 == pytest.approx(deployed, abs=0.005)
    assert infer_config(own_names(state), after_of(config)) == config
    spec = files.spec_of(state)
    assert (spec.family, spec.variant, spec.layout) == ("deimv2", variant, "official")
    assert (spec.input_hw, spec.config["queries"], spec.num_classes) == ((side, side), queries, 80)


@pytest.mark.parametrize("variant", ["HGNetV2-S", "HGNetV2-M", "HGNetV2-L", "HGNetV2-X"])
def test_the_other_official_config_files_are_inferred_too(variant: str, files: SimpleNamespace) -> None:
    """X has projections between encoder and decoder, a reg_scale of 8 and no learnable affine blocks."""
    config = files.official_config(variant)
    spec = files.spec_of(files.meta_state(config))
    numbers = {key: value for key, value in spec.config.items() if key != "queries"}
    assert DEIMv2Config.from_json(numbers) == config
    assert (spec.variant, spec.input_hw) == (variant, (640, 640))


@pytest.mark.parametrize("variant", ["Atto", "N", "S", "X"])
def test_the_numbers_survive_json(variant: str, files: SimpleNamespace) -> None:
    config = files.official_config(variant)
    assert DEIMv2Config.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("variant", "normalized"), [("Atto", False), ("N", False), ("S", True), ("X", True)])
def test_only_dinov3_backbones_are_fed_normalized_pictures(
    variant: str, normalized: bool, files: SimpleNamespace
) -> None:
    recipe = files.spec_of(files.meta_state(files.official_config(variant))).recipe
    assert (recipe.resize, recipe.interpolation) == ("stretch", "pil_bilinear")
    wanted = (IMAGENET_MEAN, IMAGENET_STD) if normalized else ((0, 0, 0), (1, 1, 1))
    assert (recipe.mean, recipe.std) == wanted


def test_sizes_that_are_not_square_are_read_from_the_anchors(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("Femto"), (352, 608))
    assert files.spec_of(state).input_hw == (352, 608)
    assert files.spec_of(state, size_hw=(96, 160)).input_hw == (96, 160)
    with pytest.raises(UsageError, match="multiples of 32"):
        files.spec_of(state, size_hw=(100, 160))


@pytest.mark.parametrize(("variant", "layers", "queries"), [("Pico", 3, 200), ("custom", 2, 300)])
def test_queries_come_from_the_size_or_the_flag(
    variant: str, layers: int, queries: int, files: SimpleNamespace
) -> None:
    state = files.meta_state(replace(files.official_config("Pico"), layers=layers))
    for options, wanted, assumed in (({}, queries, True), ({"num_queries": 42}, 42, False)):
        spec = files.spec_of(state, **options)
        (choice,) = (choice for choice in spec.choices if choice.flag == "--num-queries")
        assert spec.variant == variant
        assert (spec.config["queries"], choice.assumed) == (wanted, assumed)
    with pytest.raises(UsageError, match=r"1\.\.2000"):
        files.spec_of(state, num_queries=2001)


def test_few_queries_and_classes_limit_the_detections(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("Atto", classes=2))
    assert files.spec_of(state, num_queries=50).post == PostRecipe("detr", max_detections=100)
    assert files.spec_of(state).post == PostRecipe("detr", max_detections=200)


@pytest.mark.parametrize(("classes", "labels"), [(80, "COCO"), (366, "Objects365"), (20, "class numbers")])
def test_labels(classes: int, labels: str, files: SimpleNamespace) -> None:
    spec = files.spec_of(files.meta_state(files.official_config("N", classes)))
    (choice,) = (choice for choice in spec.choices if choice.flag == "--labels")
    assert (choice.value, choice.assumed) == (labels, True)
    assert (spec.class_names == COCO_NAMES) == (classes == 80)
    assert spec.extras == ({"category_ids": COCO_CATEGORY_IDS} if classes == 80 else {})


@pytest.mark.parametrize("variant", ["Atto", "N", "S", "L"])
def test_a_random_model_survives_the_round_trip_through_official_names(variant: str, files: SimpleNamespace) -> None:
    """Also the key bias of DINOv3, which a mask silences."""
    config, family = files.official_config(variant), DEIMv2()
    original = build_model(config, input_hw=(64, 64), queries=10)
    files.randomize(original, seed=7)
    state = files.official_state(original, config, (64, 64))
    spec = files.spec_of(state, size_hw=(64, 64), num_queries=10)
    copy = family.build(spec)
    report = fill(copy, family.remap(files.as_checkpoint(state), spec), family, source="random")
    assert (report.fraction, report.unexpected) == (1, ())
    silence_keys(original)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(8))
    with torch.inference_mode():
        for wanted, came in zip(family.wrap(original, spec)(images), family.wrap(copy, spec)(images), strict=True):
            assert torch.equal(wanted, came)


def silence_keys(module: nn.Module) -> None:
    vit: Any = getattr(module.backbone, "dinov3", None)
    if vit is not None and vit.config.layer_scale:
        for block in vit.blocks:
            block.attn.qkv.bias.data[vit.config.dim : 2 * vit.config.dim] = 0


@pytest.mark.parametrize("variant", ["Atto", "S"])
def test_each_detector_is_taken_by_its_own_family(variant: str, files: SimpleNamespace) -> None:
    checkpoint: Checkpoint = files.as_checkpoint(files.meta_state(files.official_config(variant)))
    assert recognize(checkpoint, FamilyOptions())[0].name == "deimv2"
    assert DFine().recognize(checkpoint, FamilyOptions()) is None


@pytest.mark.parametrize(
    ("variant", "key", "value", "message"),
    [
        ("Atto", "decoder.decoder.reg_scale", torch.zeros(2), "one number"),
        ("Atto", "decoder.decoder.up", torch.tensor([float("nan")]), "positive"),
        ("N", "decoder.enc_score_head.weight", None, "lacks"),
        ("N", "decoder.enc_score_head.weight", torch.zeros(80), "weight matrix"),
        ("N", "decoder.decoder.layers.0.cross_attn.num_points_scale", torch.zeros(11), "points for each"),
        ("S", "decoder.decoder.layers.0.swish_ffn.w12.weight", torch.zeros(513, 192), "even number"),
        ("S", "backbone.dinov3._model.rope_embed.periods", None, "lacks 'rope_embed.periods'"),
        ("S", "backbone.dinov3._model.rope_embed.periods", torch.zeros(15), "Heads of 60"),
        ("S", "backbone.dinov3._model.patch_embed.proj.weight", torch.zeros(192, 3, 14, 14), "16 pixels"),
    ],
)
def test_contradictory_tensors_give_one_clear_error(
    variant: str, key: str, value: torch.Tensor | None, message: str, files: SimpleNamespace
) -> None:
    state = files.meta_state(files.official_config(variant))
    state.pop(key)
    if value is not None:
        state[key] = value
    with pytest.raises(CheckpointError, match=message):
        files.spec_of(state)


@pytest.mark.parametrize(
    "value", [torch.zeros(()), torch.zeros(3), torch.zeros(1, 0, 4), torch.full((1, 500, 4), -1e9)]
)
def test_anchors_that_tell_nothing_give_the_assumed_size(value: torch.Tensor, files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("Atto"))
    spec = files.spec_of(state | {"decoder.anchors": value})
    (choice,) = (choice for choice in spec.choices if choice.flag == "--size")
    assert (spec.input_hw, choice.assumed) == ((640, 640), True)


@pytest.mark.parametrize("x", [float("nan"), float("inf"), -1e9, 1e9])
def test_anchors_with_centers_out_of_the_picture_tell_nothing(x: float, files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("S"))
    state["decoder.anchors"][..., :2] = x
    assert any(choice.flag == "--size" and choice.assumed for choice in files.spec_of(state).choices)


@pytest.mark.parametrize("variant", ["Atto", "S"])
def test_damaged_tensors_end_in_our_errors(variant: str, files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config(variant))
    first = [key for key in state if not re.search(r"layers\.[1-9]|blocks\.[1-9]|running|_tracked|lab\.|\.bias", key)]
    for index, key in enumerate(first):
        shape = ((), (0,), (3,), (2, 0, 2), (2, 3, 1, 1, 2))[index % 5]
        for damaged in ({k: v for k, v in state.items() if k != key}, state | {key: torch.zeros(shape)}):
            checkpoint = files.as_checkpoint(damaged)
            layout = DEIMv2().recognize(checkpoint, FamilyOptions()) or "official"
            with suppress(VtkError):
                DEIMv2().infer(checkpoint, layout, FamilyOptions())


def test_a_transformer_cut_short_is_refused(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("S"))
    short = {key: value for key, value in state.items() if ".blocks.11." not in key}
    with pytest.raises(CheckpointError, match=r"after the blocks \(3, 7, 11\).*has 11"):
        files.spec_of(short)
