"""RF-DETR is transformers' model in float64, has the published sizes, and reads both namings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import nn

from vtk.errors import CheckpointError, UnknownFamilyError, UsageError, VtkError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.rfdetr import RFDetr
from vtk.exporters.families.rfdetr_infer import RFDetrConfig, build_model
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.load import fill, load_model
from vtk.exporters.registry import identify, recognize
from vtk.exporters.to_onnx import example_images, export_graphs
from vtk.postprocess.api import postprocess
from vtk.postprocess.matching import match_queries
from vtk.postprocess.results import Detections
from vtk.preprocess.geometry import Geometry

MakeCheckpoint = Callable[..., Checkpoint]
Published = Callable[[str], RFDetrConfig]
Tensors = dict[str, torch.Tensor]
SIDES = {"nano": 384, "small": 512, "medium": 576, "large": 704, "base": 560, "large (2025)": 560}
# Millions of parameters, as published, of all query groups.
MILLIONS = {"nano": 30.5, "small": 32.1, "medium": 33.7, "large": 33.9}


def in_float64(checkpoint: Checkpoint, options: FamilyOptions) -> nn.Module:
    family, spec = identify(checkpoint, options)
    module = family.build(spec)
    fill(module, family.remap(checkpoint, spec), family, source="model.safetensors")
    return family.wrap(module, spec).double()


# At 64 the position table is taken as it is; at 128 it is resampled; both cut windows of their own size.
@pytest.mark.parametrize("side", [64, 128])
def test_it_computes_what_transformers_computes(hugging_face: Callable[..., Any], tmp_path: Path, side: int) -> None:
    reference = hugging_face()
    reference.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    detector = in_float64(checkpoint, FamilyOptions(size_hw=(side, side)))
    images = torch.rand(2, 3, side, side, dtype=torch.float64)
    with torch.inference_mode():
        wanted = reference.double()(pixel_values=images)
        logits, boxes = detector(images)
    assert wanted.logits.std() > 0.1
    assert (logits - wanted.logits).abs().max() < 1e-6
    assert (boxes - wanted.pred_boxes).abs().max() < 1e-6


def test_more_tokens_than_anchors_fit(hugging_face: Callable[..., Any]) -> None:
    """At 52 patches per side the outermost anchors lie in the margin."""
    reference, side = hugging_face(), 16 * 52
    state = {key: value.clone() for key, value in reference.state_dict().items()}
    config = reference.config.to_dict() | {"model_type": "rf_detr"}
    images = torch.rand(1, 3, side, side, dtype=torch.float64)
    options = FamilyOptions(size_hw=(side, side))
    checkpoint = Checkpoint(Path("m"), "pth", state, "0" * 64, "0" * 64, "flat", ("flat",), metadata={"config": config})
    with torch.inference_mode():
        wanted = reference.double()(pixel_values=images)
        logits, boxes = in_float64(checkpoint, options)(images)
    assert (logits - wanted.logits).abs().max() < 1e-6
    assert (boxes - wanted.pred_boxes).abs().max() < 1e-6


@pytest.mark.parametrize("skip", [True, False])
def test_only_the_official_code_may_choose_an_anchor_in_the_margin(small: RFDetrConfig, skip: bool) -> None:
    model = build_model(replace(small, skip_border=skip, classes=1), grid=60)
    token = torch.randn(1, small.dim, 1, 1)
    with torch.inference_mode():
        # Every anchor inside scores below zero, which is the score of those in the margin.
        model.enc_output.bias.zero_()
        memory = model.enc_output_norm(model.enc_output(token.flatten()))
        model.enc_out_class_embed.weight.copy_(-memory[None])
        model.enc_out_class_embed.bias.zero_()
        boxes = model._propose([token.expand(1, -1, 60, 60)])
    assert (boxes[..., 2:] == 0).all() == (not skip)
    assert (boxes[..., 2:] > 0).all() == skip


def test_both_namings_hold_the_same_model(
    hugging_face: Callable[..., Any], make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    reference = hugging_face()
    reference.save_pretrained(tmp_path)
    on_disk = read_checkpoint(tmp_path)
    in_memory = make_checkpoint(reference.state_dict(), config=on_disk.metadata["config"])
    assert on_disk.tensors.keys() != in_memory.tensors.keys()
    specs = [identify(checkpoint, FamilyOptions(size_hw=(64, 64)))[1] for checkpoint in (on_disk, in_memory)]
    assert specs[0] == specs[1]
    first, second = (RFDetr().remap(checkpoint, specs[0]) for checkpoint in (on_disk, in_memory))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", SIDES)
def test_every_published_size_is_inferred(
    name: str, published: Published, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    config = published(name)
    checkpoint = make_checkpoint(official_state(config), name="rf-detr.pth")
    family, layout = recognize(checkpoint, FamilyOptions())
    spec = family.infer(checkpoint, layout, FamilyOptions())
    assert (family.name, layout, spec.variant) == ("rfdetr", "official", f"RF-DETR {name}")
    assert RFDetrConfig.from_json(spec.config) == config
    assert spec.input_hw == (SIDES[name], SIDES[name])
    assert spec.recipe.mean == (0.485, 0.456, 0.406)
    assert [choice.name for choice in spec.choices] == ["labels"]
    if name in MILLIONS:
        assert round(checkpoint.num_parameters / 1e6, 1) == MILLIONS[name]


def coco_spec(published: Published, official_state: Callable[..., Tensors], make: MakeCheckpoint) -> ModelSpec:
    return RFDetr().infer(make(official_state(published("nano"))), "official", FamilyOptions())


def test_a_class_of_coco_is_its_category_id(
    published: Published, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    spec = coco_spec(published, official_state, make_checkpoint)
    names = spec.class_names
    assert names is not None
    assert len(names) == 91
    assert (names[1], names[13], names[90]) == ("person", "stop sign", "toothbrush")
    assert names[12] == "unused 12"
    assert len(set(names)) == 91
    assert "category_ids" not in spec.extras


def test_scores_are_of_queries_and_classes_together(
    published: Published, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    """Case V47."""
    post = replace(coco_spec(published, official_state, make_checkpoint).post, max_detections=3, score_threshold=0.0)
    outputs = {
        "logits": np.array([[2, 1.9, -9], [-9, -9, -1]], np.float32),
        "boxes": np.array([[0.25, 0.5, 0.5, 1], [0.75, 0.5, 0.5, 1]], np.float32),
    }
    found = postprocess(outputs, Geometry((100, 100), (10, 10), (10, 10), (0.1, 0.1), (0, 0)), post)
    assert isinstance(found, Detections)
    assert found.class_ids.tolist() == [0, 1, 2]
    assert found.scores.round(3).tolist() == pytest.approx([0.881, 0.870, 0.269])
    assert found.xyxy[:, 0].tolist() == [0, 0, 50]


ARGS: dict[str, Any] = {
    "num_windows": 1,
    "out_feature_indexes": [2, 4],
    "sa_nheads": 2,
    "ca_nheads": 4,
    "resolution": 96,
    "two_stage": True,
    "bbox_reparam": True,
    "class_names": ["cat", "dog"],
    "weights": None,
}


@pytest.fixture
def small(published: Published) -> RFDetrConfig:
    return replace(
        published("nano"),
        vit_dim=64,
        vit_depth=4,
        vit_heads=1,
        vit_ffn=96,
        position_side=6,
        windows=1,
        after=(2, 4),
        projector_width=8,
        dim=32,
        ffn=24,
        self_heads=2,
        cross_heads=4,
        points=3,
        classes=3,
        queries=7,
    )


def filled(state: Tensors) -> Tensors:
    generator = torch.Generator().manual_seed(5)
    return {key: torch.randn(value.shape, generator=generator) for key, value in state.items()}


def test_the_trainers_command_line_tells_what_tensors_cannot(
    small: RFDetrConfig, official_state: Callable[..., Tensors], through_file: Callable[..., Checkpoint]
) -> None:
    state = filled(official_state(small, groups=2))
    loaded = load_model(through_file(state, ARGS), FamilyOptions())
    assert RFDetrConfig.from_json(loaded.spec.config) == small
    assert loaded.spec.input_hw == (96, 96)
    assert loaded.spec.class_names == ("unused 0", "cat", "dog")
    assert not any(choice.assumed for choice in loaded.spec.choices)
    assert torch.equal(loaded.wrapper.model.refpoint_embed, state["refpoint_embed.weight"][:7])


def test_names_of_as_many_classes_as_there_are_start_at_none(
    small: RFDetrConfig, official_state: Callable[..., Tensors], through_file: Callable[..., Checkpoint]
) -> None:
    checkpoint = through_file(filled(official_state(small)), ARGS | {"class_names": ["cat", "dog", "cow"]})
    assert identify(checkpoint, FamilyOptions())[1].class_names == ("cat", "dog", "cow")


@pytest.mark.parametrize(("key", "value"), [("bbox_reparam", False), ("lite_refpoint_refine", False)])
def test_what_published_detectors_never_had_is_refused(
    small: RFDetrConfig,
    official_state: Callable[..., Tensors],
    through_file: Callable[..., Checkpoint],
    key: str,
    value: object,
) -> None:
    checkpoint = through_file(filled(official_state(small)), ARGS | {key: value})
    with pytest.raises(UnknownFamilyError, match=f"{key} = False"):
        identify(checkpoint, FamilyOptions())


@pytest.mark.parametrize("key", ["num_windows", "out_feature_indexes", "resolution", "two_stage", "class_names"])
@pytest.mark.parametrize("value", [10**30, -1, "x" * 10_000, [1.5] * 10_000, [10**30]])
def test_a_command_line_of_other_values_is_refused_in_a_line_or_not_used(
    small: RFDetrConfig,
    official_state: Callable[..., Tensors],
    through_file: Callable[..., Checkpoint],
    key: str,
    value: object,
) -> None:
    checkpoint = through_file(filled(official_state(small)), ARGS | {key: value})
    if key == "class_names":
        assert identify(checkpoint, FamilyOptions())[1].class_names is None
        return
    with pytest.raises(VtkError) as caught:
        identify(checkpoint, FamilyOptions())
    assert len(str(caught.value)) < 500


def test_averaged_weights_of_a_training_checkpoint_are_preferred(
    small: RFDetrConfig, official_state: Callable[..., Tensors], through_file: Callable[..., Checkpoint]
) -> None:
    state = filled(official_state(small))
    averaged = {key: value + 1 for key, value in state.items()}
    checkpoint = through_file(state, ARGS | {"device": torch.device("cpu")}, ema_model=averaged, epoch=3)
    assert checkpoint.weights == "ema_model"
    assert torch.equal(checkpoint.tensors["class_embed.bias"], averaged["class_embed.bias"])
    assert checkpoint.metadata["args"] == ARGS


def test_without_them_the_structure_is_said_to_be_assumed(
    small: RFDetrConfig, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    config = replace(small, windows=2, after=(1, 2, 3, 4))
    checkpoint = make_checkpoint(official_state(config))
    with pytest.raises(CheckpointError, match="maps come from blocks of the backbone"):
        RFDetr().infer(checkpoint, "official", FamilyOptions())
    deep = replace(config, vit_depth=12, after=(3, 6, 9, 12), cross_heads=2, self_heads=1, points=6)
    spec = RFDetr().infer(make_checkpoint(official_state(deep)), "official", FamilyOptions())
    assert spec.variant == "RF-DETR custom"
    assert RFDetrConfig.from_json(spec.config) == deep
    assert [choice.name for choice in spec.choices if choice.assumed] == ["input size", "backbone windows", "labels"]


@pytest.mark.parametrize("size", [(100, 100), (128, 64), (16, 16)])
def test_sizes_that_windows_cannot_divide_are_refused(
    size: tuple[int, int], published: Published, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    checkpoint = make_checkpoint(official_state(published("nano")))
    with pytest.raises(UsageError, match="multiple of 32"):
        RFDetr().infer(checkpoint, "official", FamilyOptions(size_hw=size))
    with pytest.raises(UsageError, match="fewer than its 300 queries"):
        RFDetr().infer(checkpoint, "official", FamilyOptions(size_hw=(256, 256)))


def test_masks_are_named_as_not_supported(
    published: Published, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    state = official_state(published("nano")) | {"segmentation_head.blocks.0.dwconv.weight": torch.empty(1)}
    with pytest.raises(UnknownFamilyError, match="RF-DETR with masks"):
        recognize(make_checkpoint(state), FamilyOptions())


def test_no_tensor_is_dropped_in_silence(
    small: RFDetrConfig, official_state: Callable[..., Tensors], through_file: Callable[..., Checkpoint]
) -> None:
    state = filled(official_state(small))
    extra = state | {"backbone.0.encoder.encoder.embeddings.register_tokens": torch.ones(1, 4, small.vit_dim)}
    with pytest.raises(WeightsMismatchError, match="register_tokens"):
        load_model(through_file(extra, ARGS), FamilyOptions())
    del state["transformer.decoder.norm.weight"]
    with pytest.raises(WeightsMismatchError, match=r"decoder\.norm\.weight"):
        load_model(through_file(state, ARGS), FamilyOptions())


@pytest.mark.parametrize("scales", [(1.0,), (2.0, 0.5)])
def test_the_graph_gives_what_the_module_gives(
    scales: tuple[float, ...],
    small: RFDetrConfig,
    official_state: Callable[..., Tensors],
    through_file: Callable[..., Checkpoint],
    randomize: Callable[[nn.Module, int], nn.Module],
    tmp_path: Path,
) -> None:
    config = replace(small, scales=scales, windows=2)
    checkpoint = through_file(filled(official_state(config)), ARGS | {"num_windows": 2})
    loaded = load_model(checkpoint, FamilyOptions(size_hw=(128, 128)))
    loaded.wrapper.load_state_dict(randomize(loaded.wrapper, 3).state_dict())
    (graph,) = export_graphs(loaded, [2], tmp_path, progress=lambda text: None)
    images = example_images(loaded, batch=2)
    with torch.inference_mode():
        wanted = [value.numpy() for value in loaded.wrapper(images)]
    found = ort.InferenceSession(graph.path, providers=["CPUExecutionProvider"]).run(None, {"images": images.numpy()})
    for row in range(2):
        matched = match_queries(*(np.asarray(values[row]) for values in (*wanted, *found)))
        assert matched.unmatched(box_atol=1e-4, logit_atol=1e-3) == 0
    operators = {node.op_type for node in onnx.load(graph.path, load_external_data=False).graph.node}
    assert not operators & {"If", "Loop", "Range", "NonZero", "Shape", "Resize"}


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("", "layer_norm_eps", "small"),
        ("", "decoder_cross_attention_heads", 0),
        ("", "decoder_cross_attention_heads", 3),
        ("", "backbone_config", None),
        ("backbone_config", "num_windows", 2.5),
        ("backbone_config", "out_indices", "1,3"),
        ("backbone_config", "out_indices", [3, 1]),
        ("backbone_config", "out_indices", []),
        ("backbone_config", "num_attention_heads", 5),
        ("backbone_config", "hidden_act", "relu"),
        ("", "num_feature_levels", 2),
    ],
)
def test_a_config_that_cannot_be_is_one_clear_error(
    section: str, key: str, value: object, hugging_face: Callable[..., Any], make_checkpoint: MakeCheckpoint
) -> None:
    reference = hugging_face()
    config = reference.config.to_dict() | {"model_type": "rf_detr"}
    config["backbone_config"] = dict(config["backbone_config"])
    (config[section] if section else config)[key] = value
    with pytest.raises((CheckpointError, UnknownFamilyError)):
        identify(make_checkpoint(reference.state_dict(), config=config), FamilyOptions(size_hw=(64, 64)))


def test_names_of_a_config_are_its_classes(hugging_face: Callable[..., Any], make_checkpoint: MakeCheckpoint) -> None:
    reference = hugging_face()
    config = reference.config.to_dict() | {"model_type": "rf_detr", "id2label": {"1": "cat", "2": "a\nb", "4": "dog"}}
    config["id2label"] |= {"1" * 5_000: "absurd", "٣": "no index of ours"}
    spec = identify(make_checkpoint(reference.state_dict(), config=config), FamilyOptions(size_hw=(64, 64)))[1]
    assert spec.class_names == ("unused 0", "cat", "unused 2", "unused 3", "dog")


@pytest.mark.parametrize("lost", ["enc_output.0.weight", "decoder.layers.0.linear1.weight", "query_feat.weight"])
def test_what_inference_reads_and_a_file_lacks_is_named(
    lost: str, published: Published, official_state: Callable[..., Tensors], make_checkpoint: MakeCheckpoint
) -> None:
    state = official_state(published("nano"))
    (name,) = [key for key in state if key.endswith(lost)]
    for damage in (None, torch.empty(3, device="meta")):
        broken = {key: value for key, value in state.items() if key != name} | (
            {name: damage} if damage is not None else {}
        )
        with pytest.raises((CheckpointError, WeightsMismatchError)):
            load_model(make_checkpoint(broken), FamilyOptions())
