"""Wrapper prefixes: what is stripped, and what is a model's own name (case V29)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vtk.errors import CheckpointError
from vtk.exporters import checkpoint_names
from vtk.exporters.checkpoint_names import split_tensors, strip_wrappers

OWN_NAMES = ("stem.conv.weight", "blocks.0.attn.qkv.bias", "head.weight", "model_head.module_list.0.weight")


def strip(*names: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tensors = {name: torch.tensor(index) for index, name in enumerate(names)}
    renamed, stripped = strip_wrappers(tensors, "x.pth")
    assert [int(tensor) for tensor in renamed.values()] == list(range(len(names)))
    return tuple(renamed), stripped


@pytest.mark.parametrize(
    ("prefix", "reported"),
    [
        ("module.", ("module.",)),
        ("model.", ("model.",)),
        ("module.module.", ("module.", "module.")),
        ("module.model.", ("module.", "model.")),
        ("model.module.model.", ("model.", "module.", "model.")),
        ("_orig_mod.", ("_orig_mod.",)),
        ("_orig_mod.module.", ("_orig_mod.", "module.")),
        ("module._orig_mod.", ("_orig_mod.", "module.")),
        ("ema.module.", ("ema.module.",)),
        ("model.backbone.", ("model.", "backbone.")),
        ("", ()),
    ],
)
def test_prefixes_that_all_names_share(prefix: str, reported: tuple[str, ...]) -> None:
    assert strip(*(prefix + name for name in OWN_NAMES)) == (OWN_NAMES, reported)


def test_inserted_names_are_removed_anywhere() -> None:
    names, stripped = strip(
        "blocks.0._orig_mod.attn.weight",
        "_fsdp_wrapped_module.blocks.1._checkpoint_wrapped_module._fsdp_wrapped_module.mlp.weight",
    )
    assert names == ("blocks.0.attn.weight", "blocks.1.mlp.weight")
    assert stripped == ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


@pytest.mark.parametrize(
    "names",
    [
        ("model.0.conv.weight", "model.22.dfl.conv.weight"),  # layer list of a YOLO model
        ("model.layer.0.norm1.weight", "embeddings.cls_token"),  # Hugging Face DINOv3
        ("model.stages.0.layers.0.gamma", "layer_norm.weight"),
        ("backbone.stem.weight", "encoder.input_proj.0.weight", "decoder.anchors"),
        ("detector.backbone.weight", "tracker.mask.weight"),
        ("module.a", "b"),
        ("model.",),
        ("modules.a",),
    ],
)
def test_names_that_belong_to_the_model_stay(names: tuple[str, ...]) -> None:
    assert strip(*names) == (names, ())


def test_the_wrapper_of_a_yolo_model_goes_and_its_layer_list_stays() -> None:
    assert strip("model.model.0.conv.weight", "model.model.1.conv.weight") == (
        ("model.0.conv.weight", "model.1.conv.weight"),
        ("model.",),
    )


@given(st.lists(st.sampled_from(["module.", "_orig_mod.", "model."]), max_size=5))
def test_any_nesting_of_wrappers_gives_the_same_names(prefixes: list[str]) -> None:
    names, stripped = strip(*("".join(prefixes) + name for name in OWN_NAMES))
    assert names == OWN_NAMES
    assert set(stripped) == set(prefixes)


def test_two_tensors_that_become_one_name_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"both called a\.w once _orig_mod\. is removed"):
        strip("a.w", "a._orig_mod.w")


def test_tensors_without_names_are_refused() -> None:
    with pytest.raises(CheckpointError, match="none under a name: its keys are 0, 1"):
        split_tensors({0: torch.ones(1), 1: torch.ones(1)}, "x.pth", 10_000)


def test_limits_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="2000 characters long"):
        split_tensors({"x" * 2000: torch.ones(1)}, "x.pth", 10_000)
    monkeypatch.setattr(checkpoint_names, "MAX_TENSORS", 2)
    with pytest.raises(CheckpointError, match="holds 3 entries; vtk reads up to 2"):
        split_tensors(dict.fromkeys("abc", torch.ones(1)), "x.pth", 10_000)
