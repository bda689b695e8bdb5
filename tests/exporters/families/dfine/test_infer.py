from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.detector_infer import trained_size
from vtk.exporters.families.dfine import DFine
from vtk.exporters.families.dfine_config import DFineConfig, build_model
from vtk.exporters.families.dfine_infer import infer_config
from vtk.exporters.families.objects365 import OBJECTS365_NAMES
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.load import fill
from vtk.exporters.modules.dfine import map_sizes
from vtk.exporters.modules.grids import anchor_logits
from vtk.exporters.modules.hgnetv2 import StageConfig

State: TypeAlias = dict[str, torch.Tensor]

STAGES = {
    "B0": ((16, 16), (16, 16, 64), (64, 32, 256), (256, 64, 512), (512, 128, 1024), (1, 1, 2, 1), 3),
    "B2": ((24, 32), (32, 32, 96), (96, 64, 384), (384, 128, 768), (768, 256, 1536), (1, 1, 3, 1), 4),
    "B4": ((32, 48), (48, 48, 128), (128, 96, 512), (512, 192, 1024), (1024, 384, 2048), (1, 1, 3, 1), 6),
    "B5": ((32, 64), (64, 64, 128), (128, 128, 512), (512, 256, 1024), (1024, 512, 2048), (1, 2, 5, 2), 6),
}
# hidden, encoder FFN, levels, fusion width, expansion, bottlenecks, decoder FFN, layers, points, reg_scale
NUMBERS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "N": ("B0", (128, 512, 2, 21, 0.34, 2, 512, 3, (6, 6), 4.0)),
    "S": ("B0", (256, 1024, 3, 64, 0.5, 1, 1024, 3, (3, 6, 3), 4.0)),
    "M": ("B2", (256, 1024, 3, 128, 1.0, 2, 1024, 4, (3, 6, 3), 4.0)),
    "L": ("B4", (256, 1024, 3, 128, 1.0, 3, 1024, 6, (3, 6, 3), 4.0)),
    "X": ("B5", (384, 2048, 3, 192, 1.0, 3, 1024, 6, (3, 6, 3), 8.0)),
}


def official_config(variant: str, *, frozen_bn: bool = False) -> DFineConfig:
    """The numbers of the official config files, written down independently of the inference."""
    backbone, (hidden, ffn, levels, width, expansion, bottlenecks, dec_ffn, layers, points, reg_scale) = NUMBERS[
        variant
    ]
    stem, *channels, blocks, convs = STAGES[backbone]
    stages = tuple(
        StageConfig(*channels[i], blocks[i], convs, kernel=3 if i < 2 else 5, light=i >= 2, downsample=i > 0)
        for i in range(4)
    )
    return DFineConfig(
        backbone=backbone,
        stem=stem,
        stages=stages,
        lab=backbone in ("B0", "B2"),
        frozen_bn=frozen_bn,
        levels=levels,
        strides=(8, 16, 32)[-levels:],
        in_channels=tuple(stage.out_channels for stage in stages[-levels:]),
        hidden=hidden,
        encoder_ffn=ffn,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=width,
        expansion=expansion,
        bottlenecks=bottlenecks,
        dim=min(hidden, 256),
        decoder_ffn=dec_ffn,
        layers=layers,
        heads=8,
        points=points,
        classes=80,
        reg_max=32,
        reg_scale=reg_scale,
        up=0.5,
    )


def official_anchors(config: DFineConfig, input_hw: tuple[int, int]) -> torch.Tensor:
    """(1, L, 4) with infinity in the rows that the official code does not use, one anchor after the other."""
    rows = []
    for level, (height, width) in enumerate(map_sizes(input_hw, config.levels)):
        side = 0.05 * 2**level
        rows += [((x + 0.5) / width, (y + 0.5) / height, side, side) for y in range(height) for x in range(width)]
    boxes = torch.tensor(rows)
    unused = ((boxes <= 0.01) | (boxes >= 0.99)).any(dim=1, keepdim=True)
    return torch.where(unused, torch.inf, boxes.logit())[None]


def official_state(module: nn.Module, config: DFineConfig, input_hw: tuple[int, int] = (640, 640)) -> State:
    """Everything that a released file holds: the module's own tensors and those without effect."""
    state = dict(module.state_dict())
    if config.frozen_bn:
        state = {k: v for k, v in state.items() if not (k.startswith("backbone.") and k.endswith("_tracked"))}
    anchors = official_anchors(config, input_hw)
    up, scale = torch.tensor([config.up]), torch.tensor([int(config.reg_scale)])
    state |= {
        "decoder.up": up,
        "decoder.reg_scale": scale,
        "decoder.decoder.up": up,
        "decoder.decoder.reg_scale": scale,
    }
    state |= {"decoder.anchors": anchors, "decoder.valid_mask": anchors.isfinite().all(-1, keepdim=True)}
    state["decoder.denoising_class_embed.weight"] = torch.zeros(config.classes + 1, config.dim)
    last = config.layers - 1
    for key in [key for key in state if f"lqe_layers.{last}." in key or f"dec_score_head.{last}." in key]:
        for layer in range(last):
            state[key.replace(f".{last}.", f".{layer}.", 1)] = torch.zeros_like(state[key])
    return state


def randomize(module: nn.Module, seed: int) -> None:
    """Draw every weight and statistic, zero-initialized heads too, so that a wrong one changes the outputs."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point() or name.endswith("num_points_scale"):
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim > 1:
            tensor.copy_(noise / tensor[0].numel() ** 0.5)
        else:
            tensor.copy_(noise.abs() + 0.5 if name.endswith(("running_var", "scale")) else 0.1 * noise + 0.5)


def as_checkpoint(tensors: Mapping[str, torch.Tensor], name: str = "model.pth") -> Checkpoint:
    return Checkpoint(Path(name), "pth", tensors, "0" * 64, "0" * 64, "flat", ("flat",))


def spec_of(tensors: Mapping[str, torch.Tensor], **options: Any) -> ModelSpec:
    checkpoint, chosen = as_checkpoint(tensors), FamilyOptions(**options)
    layout = DFine().recognize(checkpoint, chosen)
    assert layout is not None
    return DFine().infer(checkpoint, layout, chosen)


def meta_state(config: DFineConfig) -> State:
    """An official file of full size without its bytes: only the buffers that the inference reads are real."""
    with torch.device("meta"):
        module = build_model(config, input_hw=(64, 64), queries=9, act="relu")
    state = official_state(module, config)
    points_scale = torch.tensor([1 / n for n in config.points for _ in range(n)])
    return {key: points_scale if key.endswith("num_points_scale") else value for key, value in state.items()}


@pytest.mark.parametrize(
    ("variant", "frozen", "num_keys", "num_parameters"),
    [
        ("N", False, 674, 3.78e6),
        ("S", False, 794, 10.32e6),
        ("M", False, 1053, 19.59e6),
        ("L", True, 1173, 31.2e6),
        ("L", False, 1253, 31.2e6),
        ("X", True, 1441, 62.6e6),
        ("X", False, 1571, 62.6e6),
    ],
)
def test_every_official_config_is_inferred_from_a_file_with_the_official_number_of_keys(
    variant: str, frozen: bool, num_keys: int, num_parameters: float
) -> None:
    config = official_config(variant, frozen_bn=frozen)
    state = meta_state(config)
    assert len(state) == num_keys
    buffers = ("running_mean", "running_var", "num_batches_tracked", "anchors", "valid_mask", "num_points_scale")
    parameters = sum(tensor.numel() for key, tensor in state.items() if not key.endswith(buffers))
    assert parameters == pytest.approx(num_parameters, rel=5e-3)
    spec = spec_of(state)
    assert infer_config(state) == config
    assert (spec.variant, spec.layout, spec.input_hw, spec.num_classes) == (variant, "official", (640, 640), 80)
    assert DFineConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(("frozen", "family", "activation"), [(True, "dfine", "relu"), (False, "deim", "silu")])
@pytest.mark.parametrize("variant", ["L", "X"])
def test_the_norm_counters_of_l_and_x_decide_the_activation(
    variant: str, frozen: bool, family: str, activation: str
) -> None:
    spec = spec_of(meta_state(official_config(variant, frozen_bn=frozen)))
    choice = spec.choices[0]
    assert (spec.family, spec.config["activation"], choice.value, choice.assumed) == (family, activation, family, False)


def test_l_without_any_counter_does_not_decide() -> None:
    """Case V32: Objects365 files were stripped of every `num_batches_tracked`."""
    state = meta_state(official_config("L"))
    choice = spec_of({k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}).choices[0]
    assert choice.assumed


def test_the_flag_overrules_the_counters() -> None:
    spec = spec_of(meta_state(official_config("X", frozen_bn=True)), family="deim")
    assert (spec.family, spec.config["activation"], spec.choices[0].assumed) == ("deim", "silu", False)


@pytest.mark.parametrize("variant", ["S", "X"])
def test_a_random_full_size_model_survives_the_round_trip(variant: str) -> None:
    """X also has projections between encoder and decoder and a reg_scale of 8."""
    config = official_config(variant, frozen_bn=variant == "X")
    original = build_model(config, input_hw=(64, 64), queries=20, act="relu")
    randomize(original, seed=7)
    state = official_state(original, config)
    spec = spec_of(state, size_hw=(64, 64), num_queries=20, family="dfine")
    copy = DFine().build(spec)
    report = fill(copy, DFine().remap(as_checkpoint(state), spec), DFine(), source="random")
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(8))
    with torch.inference_mode():
        for wanted, came in zip(original(images), copy(images), strict=True):
            assert torch.equal(wanted, came)
    assert report.fraction == 1
    assert report.unexpected == ()


@settings(max_examples=40, deadline=None)
@given(
    cells=st.tuples(st.integers(1, 24), st.integers(1, 24)),
    variant=st.sampled_from(["N", "S"]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)
def test_the_trained_size_is_read_from_the_anchors(cells: tuple[int, int], variant: str, dtype: torch.dtype) -> None:
    """Also of pictures that are not square, with infinite rows, and after a file was cut to half precision."""
    config, size = official_config(variant), (32 * cells[0], 32 * cells[1])
    anchors = official_anchors(config, size).to(dtype)
    assert trained_size({"decoder.anchors": anchors}, config.levels) == size


def test_own_anchors_are_the_official_ones() -> None:
    for variant, size in (("N", (640, 640)), ("S", (640, 640)), ("S", (480, 800))):
        config = official_config(variant)
        official = official_anchors(config, size)[0]
        logits, valid = anchor_logits(map_sizes(size, config.levels))
        assert torch.equal(valid, official.isfinite().all(-1, keepdim=True))
        assert torch.allclose(logits.sigmoid(), official.sigmoid(), atol=1e-6)


def test_a_file_without_anchors_takes_640_and_says_so() -> None:
    state = meta_state(official_config("N"))
    del state["decoder.anchors"]
    spec = spec_of(state)
    (choice,) = (choice for choice in spec.choices if choice.flag == "--size")
    assert spec.input_hw == (640, 640)
    assert (choice.value, choice.assumed) == ("640,640", True)


@pytest.mark.parametrize("name", ["up", "reg_scale"])
def test_a_number_stored_twice_may_be_missing_once(name: str) -> None:
    state = meta_state(official_config("N"))
    del state[f"decoder.decoder.{name}"]
    assert infer_config(state) == official_config("N")
    del state[f"decoder.{name}"]
    with pytest.raises(CheckpointError, match=f"lacks 'decoder.{name}'"):
        spec_of(state)


@pytest.mark.parametrize(("variant", "points"), [("N", "6,6"), ("S", "3,6,3")])
def test_a_damaged_point_buffer_gives_the_official_points_loudly(variant: str, points: str) -> None:
    state = meta_state(official_config(variant))
    assert not [choice for choice in spec_of(state).choices if choice.name == "points per level"]
    state["decoder.decoder.layers.0.cross_attn.num_points_scale"] = torch.linspace(0.1, 0.3, 12)
    (choice,) = (choice for choice in spec_of(state).choices if choice.name == "points per level")
    assert (choice.value, choice.assumed) == (points, True)


@pytest.mark.parametrize("size", [(640, 600), (0, 640), (-32, 32), (16, 16)])
def test_a_size_that_does_not_fit_the_strides_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="multiples of 32"):
        spec_of(meta_state(official_config("N")), size_hw=size)


@pytest.mark.parametrize("queries", [0, -1, 2001])
def test_more_queries_than_tokens_are_refused(queries: int) -> None:
    with pytest.raises(UsageError, match=r"1\.\.2000"):
        spec_of(meta_state(official_config("N")), num_queries=queries)


def test_a_small_picture_has_as_many_queries_as_tokens() -> None:
    spec = spec_of(meta_state(official_config("S")), size_hw=(96, 96))
    assert spec.config["queries"] == 9 + 36 + 144


def test_labels_are_coco_for_80_classes_and_said_to_be_assumed() -> None:
    state = meta_state(official_config("N"))
    spec = spec_of(state)
    (choice,) = (choice for choice in spec.choices if choice.flag == "--labels")
    assert choice.assumed
    assert spec.class_names is not None
    assert (spec.class_names[0], spec.class_names[79]) == ("person", "toothbrush")
    assert (spec.extras["category_ids"][0], spec.extras["category_ids"][79]) == (1, 90)
    named = spec_of(state, class_names=tuple(f"c{i}" for i in range(80)))
    assert named.class_names == tuple(f"c{i}" for i in range(80))
    assert not any(choice.assumed for choice in named.choices if choice.flag == "--labels")
    assert "category_ids" not in named.extras
    with pytest.raises(UsageError, match=r"3 names.*80 classes"):
        spec_of(state, class_names=("a", "b", "c"))


@pytest.mark.parametrize("variant", ["L", "X"])
def test_a_head_of_366_classes_is_objects365_with_the_category_id_as_its_index(variant: str) -> None:
    """Official training takes the ids 1 to 365 as classes and leaves 0 untrained."""
    config = replace(official_config(variant, frozen_bn=True), classes=366)
    spec = spec_of(meta_state(config))
    (choice,) = (choice for choice in spec.choices if choice.flag == "--labels")
    assert (spec.variant, spec.num_classes, choice.value, choice.assumed) == (variant, 366, "Objects365", True)
    assert spec.class_names == OBJECTS365_NAMES
    assert "category_ids" not in spec.extras  # without them, results carry the index


def test_objects365_has_365_names_in_the_order_of_their_ids() -> None:
    known = {
        1: "Person", 2: "Sneakers", 6: "Car", 14: "Handbag/Satchel", 38: "Monitor/TV", 66: "Truck", 93: "Dog",
        110: "Machinery Vehicle", 120: "Skiboard", 140: "Cat", 150: "Gas stove", 177: "Fire Hydrant",
        365: "Table Tennis",
    }  # fmt: skip
    assert len(OBJECTS365_NAMES) == len(set(OBJECTS365_NAMES)) == 366
    assert {index: OBJECTS365_NAMES[index] for index in known} == known
    assert OBJECTS365_NAMES[0] == "none"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("decoder.decoder.reg_scale", torch.zeros(2), "one number"),
        ("decoder.decoder.up", torch.tensor([float("nan")]), "positive"),
        ("decoder.enc_score_head.weight", None, "lacks"),
        ("decoder.enc_score_head.weight", torch.zeros(80), "weight matrix"),
        ("decoder.decoder.layers.0.cross_attn.num_points_scale", torch.zeros(11), "points for each"),
        ("decoder.decoder.layers.0.cross_attn.num_points_scale", torch.full((12,), 1 / 4), "each of 2 levels"),
        ("decoder.decoder.layers.0.cross_attn.attention_weights.weight", torch.zeros(60, 128), "multiple of its heads"),
    ],
)
def test_contradictory_tensors_give_one_clear_error(key: str, value: torch.Tensor | None, message: str) -> None:
    state = meta_state(official_config("N"))
    state.pop(key)
    if value is not None:
        state[key] = value
    with pytest.raises(CheckpointError, match=message):
        spec_of(state)


def test_more_levels_than_stages_are_refused() -> None:
    state = meta_state(official_config("N"))
    extra = {f"encoder.input_proj.{i}.conv.weight": torch.zeros(128, 512, 1, 1) for i in range(2, 6)}
    scale = {"decoder.decoder.layers.0.cross_attn.num_points_scale": torch.full((12,), 1 / 2)}
    with pytest.raises(CheckpointError, match="2 to 4 levels"):
        spec_of(state | extra | scale)


def test_other_detectors_are_not_taken() -> None:
    state = meta_state(official_config("N"))
    renamed = {key.replace("linear1", "swish_ffn.w12"): value for key, value in state.items()}
    assert DFine().recognize(as_checkpoint(renamed), FamilyOptions()) is None
    assert DFine().recognize(as_checkpoint({"backbone.w": torch.zeros(1)}), FamilyOptions()) is None
