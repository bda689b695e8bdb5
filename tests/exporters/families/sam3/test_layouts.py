"""Every tensor of every layout of SAM3 has one place, or is known to have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vtk.errors import CheckpointError, UnknownFamilyError, WeightsMismatchError
from vtk.exporters.checkpoint_names import strip_wrappers
from vtk.exporters.families.sam3_keys import find_layout, to_module_names
from vtk.exporters.load import LoadedModel

Load = Callable[..., LoadedModel]
Tensors = dict[str, torch.Tensor]


def assert_same_weights(model: LoadedModel, other: LoadedModel) -> None:
    one, two = model.wrapper.state_dict(), other.wrapper.state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def renamed(tensors: Tensors, old: str, new: str) -> Tensors:
    return {new + name.removeprefix(old) if name.startswith(old) else name: value for name, value in tensors.items()}


def test_both_layouts_fill_the_module_with_the_same_numbers(official_model: LoadedModel, hf_model: LoadedModel) -> None:
    assert official_model.report.fraction == hf_model.report.fraction == 1
    assert official_model.report.unexpected == hf_model.report.unexpected == ()
    assert_same_weights(official_model, hf_model)


def test_tensors_are_taken_and_not_copied(official: Tensors, hf: Tensors, load: Load) -> None:
    model = load(hf)
    weight = model.part("text_encoder").text.token_embedding.weight
    assert weight.data_ptr() == hf["text_encoder.text_model.embeddings.token_embedding.weight"].data_ptr()
    qkv = official["detector.backbone.vision_backbone.trunk.blocks.0.attn.qkv.weight"]
    block = load(official).part("image_encoder").vision.blocks[0]
    assert block.attn.q_proj.weight.data_ptr() == qkv.data_ptr()
    assert not any(value.is_meta for value in model.wrapper.state_dict().values())


@pytest.mark.parametrize("prefix", ["", "module.", "module.detector.", "model.detector.", "detector."])
def test_fine_tuned_files_load_whatever_they_are_wrapped_in(
    official: Tensors, official_model: LoadedModel, load: Load, prefix: str
) -> None:
    """Case V29: a loader that keeps only names with `detector` would load nothing of these, and say nothing."""
    alone = {name: value for name, value in official.items() if name.startswith("detector.")}
    tensors, _ = strip_wrappers(renamed(alone, "detector.", prefix), "fine.pt")
    assert_same_weights(load(tensors), official_model)


def test_the_layout_of_the_hub_loads_without_its_tracker(
    hf: Tensors, hf_model: LoadedModel, load: Load, config: dict[str, Any]
) -> None:
    tensors = renamed(hf, "", "detector_model.")
    tensors |= {"tracker_model.no_mem_embed": torch.ones(3), "tracker_neck.fpn_layers.0.proj1.weight": torch.ones(3)}
    video = {"model_type": "sam3_video", "detector_config": config}
    assert_same_weights(load(tensors, stated=video), hf_model)


def test_only_what_is_known_to_have_no_effect_may_be_missing_or_left_over(official: Tensors, load: Load) -> None:
    """Case V30."""
    without_tables = {name: value for name, value in official.items() if not name.endswith("freqs_cis")}
    assert load(without_tables).report.fraction == 1
    newer = renamed(official, "tracker.", "tracker.model.")
    assert load(newer).report.fraction == 1
    less = dict(official)
    del less["detector.geometry_encoder.encode_norm.bias"]
    with pytest.raises(WeightsMismatchError, match=r"missing from the checkpoint \(1\): geometry\.output_norm\.bias"):
        load(less)
    more = {**official, "detector.transformer.decoder.extra_norm.weight": torch.ones(32)}
    with pytest.raises(WeightsMismatchError, match=r"not used by the model \(1\): decoder\.extra_norm\.weight"):
        load(more)


def test_a_shape_that_does_not_fit_is_refused(official: Tensors, load: Load) -> None:
    name = "detector.transformer.decoder.presence_token_out_norm.weight"
    with pytest.raises(WeightsMismatchError, match=r"presence_norm\.weight \(expected \(32,\), came \(31,\)\)"):
        load({**official, name: torch.ones(31)})
    name = "detector.transformer.encoder.layers.0.self_attn.in_proj_bias"
    with pytest.raises(CheckpointError, match="which is no query, key and value"):
        load({**official, name: torch.ones(95)})


def test_two_names_of_one_tensor_are_refused(official: Tensors) -> None:
    twice = {**official, "detector.backbone.vision_backbone.convs.1.dconv_2x2_0.bias": torch.ones(32)}
    with pytest.raises(CheckpointError, match=r"Two tensors of the checkpoint mean vision\.neck\.1\.up\.0\.bias"):
        to_module_names(twice, "official", "detector.")


def test_bfloat16_weights_become_float32(official: Tensors, hf_model: LoadedModel, load: Load) -> None:
    """Case V37."""
    half = {name: value.bfloat16() if value.is_floating_point() else value for name, value in official.items()}
    model = load(half)
    values = model.wrapper.state_dict()
    assert {value.dtype for value in values.values()} == {torch.float32}
    name = "decoder.decoder.query_embed.weight"
    assert torch.equal(values[name], half["detector.transformer.decoder.query_embed.weight"].float())
    assert not torch.equal(values[name], hf_model.wrapper.state_dict()[name])


def test_other_detectors_are_not_taken_for_it(load: Load) -> None:
    assert find_layout({"decoder.decoder.layers.0.norm1.weight": 0, "transformer.decoder.norm.weight": 0}) is None
    with pytest.raises(UnknownFamilyError, match="are not recognized"):
        load({"transformer.decoder.norm.weight": torch.ones(3)})
