"""Which numbers the tensors of a SAM3 tell, and which a config.json must."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vtk.errors import AmbiguousError, CheckpointError, UsageError, VtkError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.sam3_infer import infer_config, stated_config
from vtk.exporters.families.sam3_keys import to_module_names
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import LoadedModel
from vtk.exporters.modules.sam3 import Sam3
from vtk.exporters.modules.sam3_config import Sam3Config, Sam3TextConfig, Sam3VisionConfig
from vtk.exporters.registry import identify

Load = Callable[..., LoadedModel]
Make = Callable[..., Checkpoint]
Tensors = dict[str, torch.Tensor]

SMALL = Sam3Config(
    vision=Sam3VisionConfig(64, 4, 4, 144, 14, 8, 8, (1, 3)),
    text=Sam3TextConfig(16, 2, 2, 64, 32, 49408),
    dim=32,
    heads=4,
    queries=20,
    grid=16,
    roi=7,
    geometry_depth=2,
    geometry_ffn=64,
    encoder_depth=2,
    encoder_ffn=64,
    decoder_depth=2,
    decoder_ffn=64,
    scoring_ffn=64,
)
FULL = Sam3Config(
    vision=Sam3VisionConfig(1024, 32, 16, 4736, 14, 24, 24, (7, 15, 23, 31)),
    text=Sam3TextConfig(1024, 24, 16, 4096, 32, 49408),
    dim=256,
    heads=8,
    queries=200,
    grid=72,
    roi=7,
    geometry_depth=3,
    geometry_ffn=2048,
    encoder_depth=6,
    encoder_ffn=2048,
    decoder_depth=6,
    decoder_ffn=2048,
    scoring_ffn=2048,
)


WITH_TEXT = {"model_type": "sam3", "text_config": {"num_attention_heads": 2}}


def without_text_heads(config: dict[str, Any]) -> dict[str, Any]:
    text = {key: value for key, value in config["text_config"].items() if key != "num_attention_heads"}
    return {**config, "text_config": text}


def test_every_number_of_the_golden_model(official_model: LoadedModel, hf_model: LoadedModel) -> None:
    for model in (official_model, hf_model):
        assert Sam3Config.from_mapping(model.spec.config) == SMALL
        assert Sam3Config.from_mapping(json.loads(json.dumps(model.spec.config))) == SMALL
        assert model.spec.input_hw == model.spec.recipe.size_hw == (224, 224)
        assert model.spec.recipe.mean == model.spec.recipe.std == (0.5, 0.5, 0.5)
        assert (model.spec.recipe.resize, model.spec.recipe.interpolation) == ("stretch", "pil_bilinear")
        assert (model.spec.task, model.spec.post.kind, model.spec.post.score_threshold) == ("segment", "segment", 0.5)
        assert [part.name for part in model.spec.parts] == ["image_encoder", "text_encoder", "decoder"]


def test_rotation_tables_of_the_official_file_tell_heads_windows_and_size(
    official: Tensors, make_checkpoint: Make
) -> None:
    found = infer_config(
        make_checkpoint(official, config=WITH_TEXT), to_module_names(official, "official", "detector.")
    )
    assert found == SMALL


def test_the_released_size_needs_no_config(make_checkpoint: Make) -> None:
    with torch.device("meta"):
        tensors = Sam3(FULL).state_dict()
    assert infer_config(make_checkpoint(tensors), tensors) == FULL


def test_what_no_tensor_tells_is_asked_for(official: Tensors, hf: Tensors, load: Load, config: dict[str, Any]) -> None:
    with pytest.raises(AmbiguousError, match="no tensor tells the heads of the text") as caught:
        load(official, stated=without_text_heads(config))
    assert "config.json" in str(caught.value.hint)
    with pytest.raises(AmbiguousError, match="the heads of the picture"):
        load(hf, stated=None)


def test_a_config_beside_the_file_is_read_if_it_is_of_a_sam3(
    golden_dir: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    path = tmp_path / "sam3.pt"
    path.symlink_to(golden_dir / "sam3_small.pt")
    with pytest.raises(AmbiguousError):
        identify(read_checkpoint(path), FamilyOptions())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "clip"}))
    assert stated_config(read_checkpoint(path)) == {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, spec = identify(read_checkpoint(path), FamilyOptions())
    assert Sam3Config.from_mapping(spec.config) == SMALL


@pytest.mark.parametrize("value", [0, -1, "4", 4.0, True, 5])
def test_heads_that_cannot_be_are_refused(official: Tensors, load: Load, config: dict[str, Any], value: object) -> None:
    text = {**config["text_config"], "num_attention_heads": value}
    with pytest.raises(CheckpointError, match=r"expected a whole number|text, 16 wide, cannot be split into 5 heads"):
        load(official, stated={**config, "text_config": text})


def test_only_the_size_of_its_training_is_taken(official: Tensors, load: Load) -> None:
    assert load(official, size_hw=(224, 224)).spec.input_hw == (224, 224)
    with pytest.raises(UsageError, match="takes pictures of 224x224 only"):
        load(official, size_hw=(448, 448))


@pytest.mark.parametrize(("size", "patches"), [(238, 17), (56, 4), (1, 0)])
def test_a_size_that_windows_do_not_divide_is_refused(
    official: Tensors, load: Load, config: dict[str, Any], size: int, patches: int
) -> None:
    backbone = {**config["vision_config"]["backbone_config"], "image_size": size}
    stated = {**config, "vision_config": {**config["vision_config"], "backbone_config": backbone}}
    with pytest.raises(CheckpointError, match=f"{patches} patches on a side do not divide into windows of 8"):
        load(official, stated=stated)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_tensor_is_one_error_and_no_traceback(official: Tensors, load: Load, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(official)))
    shape = tuple(official[name].shape)
    other = data.draw(st.sampled_from([(), (0,), shape[:-1], (*shape, 1), (*shape[:-1], shape[-1] + 1), (21,)]))
    with suppress(VtkError):
        loaded = load({**official, name: torch.zeros(other)}, stated=WITH_TEXT)
        assert Sam3Config.from_mapping(loaded.spec.config) == SMALL
