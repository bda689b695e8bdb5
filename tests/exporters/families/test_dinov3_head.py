"""Linear classifiers on DINOv3: in a file of their own or beside the backbone, with the mean of the patches or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vtk.bundle import read_bundle
from vtk.cli.main import main
from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.checkpoint_head import join_head
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model
from vtk.exporters.registry import identify
from vtk.reference import load_source

DIM, CLASSES = 128, 7
NAMES = tuple(f"kind {index}" for index in range(CLASSES))


@pytest.fixture
def backbone(golden_dir: Path) -> Checkpoint:
    return read_checkpoint(golden_dir / "dinov3_vit_mlp.pth")


def head_of(features: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(features)
    weight = torch.randn(CLASSES, features, generator=generator) / features**0.5
    return {"weight": weight, "bias": torch.randn(CLASSES, generator=generator)}


def save(tensors: dict[str, torch.Tensor], folder: Path) -> str:
    path = folder / "linear_head.pth"
    torch.save(tensors, path)
    return str(path)


@pytest.mark.parametrize("features", [DIM, 2 * DIM])
@pytest.mark.parametrize("prefix", ["", "linear."])
def test_logits_are_those_of_the_official_tokens(
    features: int, prefix: str, backbone: Checkpoint, golden_dir: Path, tmp_path: Path
) -> None:
    head = head_of(features)
    path = save({prefix + name: value for name, value in head.items()}, tmp_path)
    loaded = load_model(join_head(backbone, path), FamilyOptions(size_hw=(192, 320), head=path))
    with np.load(golden_dir / "dinov3_inputs.npz") as stored:
        images = torch.from_numpy(stored["input_192x320"])
    with np.load(golden_dir / "dinov3_vit_mlp_expected.npz") as stored:
        cls, patches = (torch.from_numpy(stored[f"{name}_192x320"]) for name in ("cls", "patch"))
    wanted = torch.cat([cls, patches.mean(dim=1)], dim=1)[:, :features] @ head["weight"].T + head["bias"]
    with torch.inference_mode():
        (logits,) = loaded.wrapper(images)
    assert (logits - wanted).abs().max() < 1e-5
    assert (loaded.spec.task, loaded.spec.num_classes, loaded.spec.config["head"]) == (
        "classify",
        CLASSES,
        (7, features),
    )


def test_a_joint_state_dict_needs_no_flag(backbone: Checkpoint, tmp_path: Path) -> None:
    """As torch.save writes the official classifier, whose parts are `backbone` and `linear_head`."""
    head = head_of(2 * DIM)
    joint = {f"backbone.{name}": value for name, value in backbone.tensors.items()}
    torch.save(joint | {f"linear_head.{name}": value for name, value in head.items()}, tmp_path / "joint.pth")
    loaded = load_model(read_checkpoint(tmp_path / "joint.pth"), FamilyOptions(class_names=NAMES))
    path = save(head, tmp_path)
    apart = load_model(join_head(backbone, path), FamilyOptions(class_names=NAMES, head=path))
    assert loaded.spec == apart.spec
    images = torch.rand(1, 3, 256, 256)
    with torch.inference_mode():
        assert torch.equal(loaded.wrapper(images)[0], apart.wrapper(images)[0])
    with pytest.raises(UsageError, match="a linear head of its own"):
        join_head(loaded.checkpoint, path)


def test_heads_of_other_inputs_are_refused(backbone: Checkpoint, tmp_path: Path) -> None:
    path = save(head_of(5 * DIM), tmp_path)
    with pytest.raises(CheckpointError, match="takes 640 features, but this backbone gives 128"):
        identify(join_head(backbone, path), FamilyOptions(head=path))
    several = save({f"classifiers_dict.{name}.linear.weight": torch.ones(2, DIM) for name in "ab"}, tmp_path)
    with pytest.raises(CheckpointError, match="not one linear layer"):
        join_head(backbone, several)


def test_labels_must_fit_a_head(backbone: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has none"):
        identify(backbone, FamilyOptions(class_names=NAMES))
    path = save(head_of(DIM), tmp_path)
    with pytest.raises(UsageError, match="6 names, but the head has 7"):
        identify(join_head(backbone, path), FamilyOptions(class_names=NAMES[1:], head=path))


def test_other_families_take_no_head(golden_dir: Path, tmp_path: Path) -> None:
    path = save(head_of(DIM), tmp_path)
    checkpoint = replace(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth"), tensors={"x": torch.ones(1)})
    with pytest.raises(UsageError, match="--head means nothing"):
        identify(read_checkpoint(golden_dir / "dfine_n.pth"), FamilyOptions(family="dfine", head=path))
    assert join_head(checkpoint, None) is checkpoint


def test_the_command_makes_a_classifier_that_knows_its_source(golden_dir: Path, tmp_path: Path) -> None:
    source, output = golden_dir / "dinov3_vit_mlp.pth", tmp_path / "bundle"
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(NAMES))
    head = save(head_of(2 * DIM), tmp_path)
    command = ["export", str(source), "-o", str(output), "--head", head, "--labels", str(labels)]
    assert main([*command, "--batch", "1", "--size", "64"]) == 0
    bundle = read_bundle(output)
    assert bundle.manifest.task == "classify"
    assert tuple(label.name for label in bundle.manifest.labels) == NAMES
    assert load_source(bundle, source).spec.num_classes == CLASSES
    save(head_of(DIM), tmp_path)
    with pytest.raises(UsageError, match="is not the source"):
        load_source(bundle, source)
