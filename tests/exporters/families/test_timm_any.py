from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import timm
import timm.data
import torch
from PIL import Image
from torch import nn

from vtk.errors import UsageError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.families.timm_any import TimmModel
from vtk.exporters.family import FamilyOptions, ModelSpec
from vtk.exporters.load import load_model
from vtk.exporters.registry import recognize
from vtk.exporters.to_onnx import export_graphs
from vtk.preprocess.apply import preprocess

Tensors = dict[str, torch.Tensor]
Make = Callable[..., Checkpoint]
Run = Callable[..., dict[str, torch.Tensor]]
Randomize = Callable[[nn.Module, int], nn.Module]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def infer(checkpoint: Checkpoint, **options: Any) -> ModelSpec:
    return TimmModel().infer(checkpoint, "timm", FamilyOptions(**options))


def noise(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(side))


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("num_classes", [0, 7])
def test_equals_timm(name: str, num_classes: int, make_checkpoint: Make, run_model: Run, randomize: Randomize) -> None:
    peer = randomize(timm.create_model(name, num_classes=num_classes), 1)
    checkpoint, images = make_checkpoint(peer.state_dict()), noise(160)
    with torch.inference_mode():
        wanted = peer(images)
    outputs = run_model(checkpoint, images, timm_name=name)
    assert list(outputs) == (["logits"] if num_classes else ["cls"])
    (came,) = outputs.values()
    torch.testing.assert_close(came, wanted, atol=1e-5, rtol=1e-5)


def test_the_head_decides_task_and_classes(make_checkpoint: Make) -> None:
    names = ("cat", "dog", "emu")
    checkpoint = make_checkpoint(timm.create_model("test_resnet", num_classes=3).state_dict())
    spec = infer(checkpoint, timm_name="test_resnet", class_names=names)
    assert (spec.task, spec.post.kind, spec.num_classes, spec.class_names) == ("classify", "classify", 3, names)
    with pytest.raises(UsageError, match="2 labels were given, but the model has 3 classes"):
        infer(checkpoint, timm_name="test_resnet", class_names=names[:2])
    headless = make_checkpoint(timm.create_model("test_resnet", num_classes=0).state_dict())
    spec = infer(headless, timm_name="test_resnet")
    assert (spec.task, spec.post.kind, spec.num_classes) == ("embed", "embed", None)


@pytest.mark.parametrize(
    "name", ["test_resnet.r160_in1k", "resnet18.tv_in1k", "beit_base_patch16_224", "vit_base_patch16_siglip_224"]
)
@pytest.mark.parametrize("size_wh", [(333, 250), (90, 201)])
def test_recipe_is_timms_own_transform(name: str, size_wh: tuple[int, int], make_checkpoint: Make) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (size_wh[1], size_wh[0], 3), dtype=np.uint8)
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    wanted = timm.data.create_transform(**config, is_training=False)(Image.fromarray(pixels)).numpy()
    recipe = infer(make_checkpoint({}), timm_name=name).recipe
    assert np.abs(preprocess(pixels, recipe).tensor - wanted).max() < 1e-6


def test_every_known_model_has_a_recipe_or_a_clear_refusal(make_checkpoint: Make) -> None:
    checkpoint, names = make_checkpoint({}), timm.list_pretrained()
    refusals = [text for text in (refusal(checkpoint, name) for name in names) if text is not None]
    assert all("cannot be reproduced" in text for text in refusals)
    assert 0 < len(refusals) < len(names) / 50
    assert any("crop mode 'border'" in text for text in refusals)
    assert any("'squash' with crop_pct" in text for text in refusals)


def refusal(checkpoint: Checkpoint, name: str) -> str | None:
    try:
        infer(checkpoint, timm_name=name)
    except UsageError as error:
        return error.message
    return None


def test_config_beside_the_weights_decides_the_recipe(make_checkpoint: Make) -> None:
    stated = {"mean": [0.1, 0.2, 0.3], "input_size": [3, 96, 128], "crop_mode": "squash", "crop_pct": 1.0}
    spec = infer(make_checkpoint({}, config={"pretrained_cfg": stated}), timm_name="resnet18")
    assert (spec.recipe.mean, spec.input_hw, spec.recipe.resize) == ((0.1, 0.2, 0.3), (96, 128), "stretch")
    assert spec.choices == ()


def test_an_untagged_name_is_an_assumption_where_recipes_differ(make_checkpoint: Make) -> None:
    (choice,) = infer(make_checkpoint({}), timm_name="resnet18").choices
    assert (choice.value, choice.assumed) == ("a1_in1k", True)
    assert "tv_in1k" in choice.alternatives
    assert infer(make_checkpoint({}), timm_name="resnet18.tv_in1k").choices == ()
    assert infer(make_checkpoint({}), timm_name="test_resnet").choices == ()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet81", "resnet18"),
        ("hf-hub:timm/resnet18.a1_in1k", "timm"),
        ("local-dir:/tmp", "timm"),
        ("resnet18.nonsense", "tv_in1k"),
        ("", "timm"),
    ],
)
def test_unknown_names_are_refused_with_close_ones(name: str, hint: str, make_checkpoint: Make) -> None:
    with pytest.raises(UsageError, match=hint):
        infer(make_checkpoint({}), timm_name=name)


def test_only_a_named_model_is_recognized(make_checkpoint: Make) -> None:
    checkpoint = make_checkpoint(timm.create_model("test_vit").state_dict())
    assert TimmModel().recognize(checkpoint, FamilyOptions()) is None
    assert recognize(checkpoint, FamilyOptions(timm_name="test_vit"))[0].name == "timm"
    with pytest.raises(UsageError, match="--timm-name"):
        load_model(checkpoint, FamilyOptions(family="timm"))


def test_the_wrong_model_is_refused_with_both_lists(make_checkpoint: Make) -> None:
    checkpoint = make_checkpoint(timm.create_model("test_vit").state_dict())
    with pytest.raises(WeightsMismatchError, match=r"missing from the checkpoint.*not used by the model"):
        load_model(checkpoint, FamilyOptions(timm_name="test_resnet"))


def test_fixed_size_models_take_another_size_with_fitting_weights(make_checkpoint: Make, run_model: Run) -> None:
    peer = timm.create_model("test_vit", img_size=96).eval()
    checkpoint, images = make_checkpoint(peer.state_dict()), noise(96)
    with torch.inference_mode():
        wanted = peer(images)
    torch.testing.assert_close(run_model(checkpoint, images, timm_name="test_vit")["logits"], wanted)
    with pytest.raises(WeightsMismatchError, match="pos_embed"):
        load_model(checkpoint, FamilyOptions(timm_name="test_vit"))


def test_attention_is_written_out_in_the_graph(tmp_path: Path, make_checkpoint: Make) -> None:
    peer = timm.create_model("test_vit", num_classes=5)
    loaded = load_model(make_checkpoint(peer.state_dict()), FamilyOptions(timm_name="test_vit"))
    (graph,) = export_graphs(loaded, [1], tmp_path, progress=lambda _: None)
    assert graph.lint.errors == ()
    model = onnx.load(str(graph.path))
    producer = {name: node for node in model.graph.node for name in node.output}
    for softmax in (node for node in model.graph.node if node.op_type == "Softmax"):
        scores = producer[softmax.input[0]]
        assert (scores.op_type, producer[scores.input[0]].op_type) == ("MatMul", "Mul")  # case V06
    images = noise(160)[:1]
    session = ort.InferenceSession(str(graph.path), providers=["CPUExecutionProvider"])
    (came,) = session.run(["logits"], {"images": images.numpy()})
    with torch.inference_mode():
        assert np.abs(came - loaded.wrapper(images)[0].numpy()).max() < 1e-4
