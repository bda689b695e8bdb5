from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import read_checkpoint
from vtk.exporters.families.deimv2_layout import own_names
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model

# As the hub's example writes them: the smallest sizes leave out what the class takes by default.
ATTO = {
    "HGNetv2": {"name": "Atto", "return_idx": [2], "freeze_norm": False, "use_lab": True, "pretrained": False},
    "LiteEncoder": {
        "in_channels": [256], "feat_strides": [16], "hidden_dim": 64, "expansion": 0.34, "depth_mult": 0.5,
        "act": "silu",
    },
    "DEIMTransformer": {
        "feat_channels": [64, 64], "feat_strides": [16, 32], "hidden_dim": 64, "num_levels": 2, "num_points": [4, 2],
        "num_layers": 3, "eval_idx": -1, "num_queries": 70, "dim_feedforward": 160, "share_bbox_head": True,
        "use_gateway": False, "eval_spatial_size": [320, 320],
    },
    "PostProcessor": {"num_top_queries": 300},
}  # fmt: skip
S = {
    "DINOv3STAs": {"name": "vit_tiny", "embed_dim": 192, "interaction_indexes": [5, 8, 11], "num_heads": 3},
    "HybridEncoder": {
        "in_channels": [192, 192, 192], "hidden_dim": 192, "use_encoder_idx": [2], "num_encoder_layers": 1, "nhead": 8,
        "dim_feedforward": 512, "enc_act": "gelu", "expansion": 0.34, "depth_mult": 0.67, "act": "silu",
        "version": "deim", "csp_type": "csp2", "fuse_op": "sum",
    },
    "DEIMTransformer": {
        "hidden_dim": 192, "num_levels": 3, "num_layers": 4, "eval_idx": -1, "num_queries": 300, "reg_max": 32,
        "reg_scale": 4, "layer_scale": 1, "num_points": [3, 6, 3], "cross_attn_method": "default",
        "query_select_method": "default", "activation": "silu", "mlp_act": "silu", "dim_feedforward": 512,
        "eval_spatial_size": [640, 640],
    },
    "PostProcessor": {"num_top_queries": 250},
}  # fmt: skip


def changed(config: dict[str, Any], section: str, key: str, value: object) -> dict[str, Any]:
    new = copy.deepcopy(config)
    new[section][key] = value
    return new


def test_a_hub_folder_stores_a_shared_head_once_and_states_its_queries(golden_dir: Path, tmp_path: Path) -> None:
    official = read_checkpoint(golden_dir / "deimv2_atto.pth")
    names = own_names(official.tensors)
    shared = {f"decoder.dec_bbox_head.{i}." for i in (1, 2)} | {"decoder.decoder.up", "decoder.decoder.reg_scale"}
    stored = {key: value for key, value in official.tensors.items() if not key.startswith(tuple(shared))}
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(ATTO))
    loaded = load_model(read_checkpoint(tmp_path), FamilyOptions())
    assert (loaded.spec.layout, loaded.spec.variant, loaded.spec.config["queries"]) == ("hub", "Atto", 70)
    assert not next(choice for choice in loaded.spec.choices if choice.name == "queries").assumed
    state = loaded.wrapper.state_dict()
    for layer in range(3):
        key = f"decoder.dec_bbox_head.{layer}.layers.2.weight"
        assert torch.equal(state[key], names[key])
    same = load_model(official, FamilyOptions(num_queries=70))
    images = torch.rand(1, 3, 320, 320, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        for wanted, came in zip(same.wrapper(images), loaded.wrapper(images), strict=True):
            assert torch.equal(wanted, came)


@pytest.mark.parametrize(("base", "variant"), [(ATTO, "Atto"), (S, "S")])
def test_the_sections_of_the_hub_agree_with_the_tensors(
    base: dict[str, Any], variant: str, files: SimpleNamespace
) -> None:
    side = base["DEIMTransformer"]["eval_spatial_size"][0]
    state = files.meta_state(files.official_config(variant), (side, side))
    spec = files.spec_of(state, base)
    assert (spec.layout, spec.variant) == ("hub", variant)
    assert spec.config["queries"] == base["DEIMTransformer"]["num_queries"]
    assert spec.post.max_detections == base["PostProcessor"]["num_top_queries"]


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("DEIMTransformer", "hidden_dim", 256),
        ("DEIMTransformer", "num_layers", 6),
        ("DEIMTransformer", "num_levels", 2),
        ("DEIMTransformer", "num_points", [4, 4, 4]),
        ("DEIMTransformer", "num_points", 4),
        ("DEIMTransformer", "num_classes", 365),
        ("DEIMTransformer", "dim_feedforward", 1024),
        ("DEIMTransformer", "use_gateway", False),
        ("DEIMTransformer", "reg_max", 16),
        ("DEIMTransformer", "reg_scale", 8),
        ("DEIMTransformer", "eval_spatial_size", [320, 320]),
        ("DEIMTransformer", "eval_idx", 2),
        ("HybridEncoder", "version", "dfine"),
        ("HybridEncoder", "hidden_dim", 256),
        ("HybridEncoder", "dim_feedforward", 1024),
        ("DINOv3STAs", "conv_inplane", 32),
    ],
)
def test_a_config_of_other_weights_is_refused_by_name(
    section: str, key: str, value: object, files: SimpleNamespace
) -> None:
    state = files.meta_state(files.official_config("S"))
    with pytest.raises(CheckpointError, match=rf"contradict each other: {section}\.{key}"):
        files.spec_of(state, changed(S, section, key, value))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("DEIMTransformer", "cross_attn_method", "discrete"),
        ("DEIMTransformer", "query_select_method", "one2many"),
        ("DEIMTransformer", "learn_query_content", True),
        ("DEIMTransformer", "mlp_act", "relu"),
        ("HybridEncoder", "fuse_op", "cat"),
        ("HybridEncoder", "nhead", 4),
    ],
)
def test_options_that_leave_no_trace_in_the_tensors_are_not_ignored(
    section: str, key: str, value: object, files: SimpleNamespace
) -> None:
    state = files.meta_state(files.official_config("S"))
    with pytest.raises(CheckpointError, match=rf"{section}\.{key} is {value!r}; vtk knows only"):
        files.spec_of(state, changed(S, section, key, value))


def test_the_name_of_the_backbone_is_held_to_the_tensors(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("Atto"), (320, 320))
    with pytest.raises(CheckpointError, match=r"HGNetv2\.name is 'Pico', expected 'Atto'"):
        files.spec_of(state, changed(ATTO, "HGNetv2", "name", "Pico"))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("DEIMTransformer", "num_queries", "300"),
        ("DEIMTransformer", "num_queries", True),
        ("DEIMTransformer", "num_queries", 0),
        ("PostProcessor", "num_top_queries", 0),
        ("DEIMTransformer", "eval_spatial_size", 640),
        ("DINOv3STAs", "interaction_indexes", [11]),
        ("DINOv3STAs", "interaction_indexes", [3, 11, 7]),
        ("DINOv3STAs", "interaction_indexes", "last"),
    ],
)
def test_nonsense_in_a_section_is_named(section: str, key: str, value: object, files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("S"))
    with pytest.raises(CheckpointError, match=rf"config\.json: {section}\.{key}"):
        files.spec_of(state, changed(S, section, key, value))
    with pytest.raises(CheckpointError, match="HybridEncoder is 3"):
        files.spec_of(state, S | {"HybridEncoder": 3})


def test_the_size_is_taken_from_the_config_where_there_are_no_anchors(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("S"))
    del state["decoder.anchors"]
    spec = files.spec_of(state, changed(S, "DEIMTransformer", "eval_spatial_size", [320, 512]))
    assert spec.input_hw == (320, 512)


@pytest.mark.parametrize(
    ("variant", "stated", "taken", "assumed"),
    [
        ("S", None, (3, 7, 11), True),
        ("S", [3, 7, 11], (3, 7, 11), False),
        ("S", [2, 5, 11], (2, 5, 11), False),
        ("S", [5, 8, 11], (3, 7, 11), True),
        ("L", None, (5, 8, 11), True),
        ("L", [5, 8, 11], (5, 8, 11), False),
    ],
)
def test_the_blocks_that_feed_the_encoder(
    variant: str, stated: list[int] | None, taken: tuple[int, ...], assumed: bool, files: SimpleNamespace
) -> None:
    """The hub's S and M state the blocks of L and X, but their training took every fourth: said loudly."""
    state = files.meta_state(files.official_config(variant))
    section = {} if stated is None else {"interaction_indexes": stated}
    spec = files.spec_of(state, {"DEIMTransformer": {}, "DINOv3STAs": section})
    (choice,) = (choice for choice in spec.choices if choice.name == "feature blocks")
    assert (spec.config["sta"]["after"], choice.assumed) == (taken, assumed)


def test_the_flag_decides_before_the_config_and_must_fit(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("S"))
    spec = files.spec_of(state, S, feature_blocks=(5, 8, 11))
    (choice,) = (choice for choice in spec.choices if choice.name == "feature blocks")
    assert (spec.config["sta"]["after"], choice.value, choice.assumed) == ((5, 8, 11), "5,8,11", False)
    for blocks in ((11,), (3, 11, 7), (3, 3, 7)):
        with pytest.raises(UsageError, match="three rising numbers"):
            files.spec_of(state, feature_blocks=blocks)
    with pytest.raises(CheckpointError, match="has 12"):
        files.spec_of(state, feature_blocks=(3, 7, 12))
    with pytest.raises(UsageError, match="without a transformer"):
        files.spec_of(files.meta_state(files.official_config("N")), feature_blocks=(3, 7, 11))


def test_a_foreign_config_beside_the_weights_changes_nothing(files: SimpleNamespace) -> None:
    state = files.meta_state(files.official_config("S"))
    spec = files.spec_of(state, {"model_type": "other", "num_queries": 5})
    assert (spec.layout, spec.config["queries"]) == ("official", 300)
