"""RT-DETRv2 is transformers' model in float64, has the published sizes, and reads both layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from vtk.errors import CheckpointError, UnknownFamilyError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.rtdetrv2 import RTDetrV2
from vtk.exporters.families.rtdetrv2_infer import RTDetrConfig, build_model, infer_config
from vtk.exporters.families.rtdetrv2_keys import from_hugging_face
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import fill, load_model
from vtk.exporters.modules.grids import anchor_logits
from vtk.exporters.registry import identify, recognize
from vtk.exporters.to_onnx import example_images, export_graphs
from vtk.postprocess.matching import match_queries

MakeCheckpoint = Callable[..., Checkpoint]
Tensors = dict[str, torch.Tensor]
SIDE = 128

# ResNet blocks, bottlenecks, fusion width, decoder layers, used ones, encoder width, millions of trained parameters
PUBLISHED: dict[str, tuple[tuple[int, ...], bool, int, int, int, int, float]] = {
    "R18": ((2, 2, 2, 2), False, 128, 3, 3, 256, 20.17),
    "R34": ((3, 4, 6, 3), False, 128, 4, 4, 256, 31.42),
    "R50-m": ((3, 4, 6, 3), True, 128, 6, 3, 256, 36.59),
    "R50": ((3, 4, 6, 3), True, 256, 6, 6, 256, 42.89),
    "R101": ((3, 4, 23, 3), True, 384, 6, 6, 384, 76.56),
}


def published(name: str) -> RTDetrConfig:
    blocks, bottleneck, width, layers, used, hidden, _ = PUBLISHED[name]
    channels = (64, 128, 256, 512)
    outs = tuple(value * (4 if bottleneck else 1) for value in channels)
    return RTDetrConfig(
        depth=int(name[1:].removesuffix("-m")),
        stem=(32, 64),
        blocks=blocks,
        channels=channels,
        bottleneck=bottleneck,
        levels=3,
        in_channels=outs[1:],
        hidden=hidden,
        encoder_ffn=2048 if hidden == 384 else 1024,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=width,
        bottlenecks=3,
        decoder_channels=(hidden,) * 3,
        dim=256,
        decoder_ffn=1024,
        layers=layers,
        used=used,
        heads=8,
        points=(4, 4, 4),
        classes=80,
        position_depth=2,
    )


def official_state(config: RTDetrConfig) -> Tensors:
    """Names, shapes and the small buffers of a released file: without norm counters in the frozen backbone."""
    with torch.device("meta"):
        state = build_model(config, input_hw=(64, 64), queries=9, act="relu").state_dict()
    kept = {k: v for k, v in state.items() if not (k.startswith("backbone") and k.endswith("num_batches_tracked"))}
    scale = torch.full((sum(config.points),), 0.25)
    kept |= {f"decoder.decoder.layers.{i}.cross_attn.num_points_scale": scale for i in range(config.layers)}
    anchors, valid = anchor_logits([(640 // stride, 640 // stride) for stride in (8, 16, 32)])
    kept |= {"decoder.anchors": anchors[None], "decoder.valid_mask": valid[None]}
    return kept | {"decoder.denoising_class_embed.weight": torch.empty(config.classes + 1, config.dim, device="meta")}


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_size_is_inferred_and_has_its_count(name: str, make_checkpoint: MakeCheckpoint) -> None:
    config, state = published(name), official_state(published(name))
    assert infer_config(state, official=True) == config
    checkpoint = make_checkpoint(state, name="rtdetrv2.pth")
    family, layout = recognize(checkpoint, FamilyOptions())
    assert (family.name, layout) == ("rtdetrv2", "official")
    spec = family.infer(checkpoint, layout, FamilyOptions())
    assert (spec.variant, spec.input_hw) == (f"RT-DETRv2 {name}", (640, 640))
    assert spec.recipe.mean == (0.0, 0.0, 0.0)
    buffers = ("running_mean", "running_var", "num_batches_tracked", "num_points_scale", "anchors", "valid_mask")
    frozen = re.compile(r"backbone\..*\.norm\.(weight|bias)")
    names = [key for key in state if not key.endswith(buffers) and not frozen.fullmatch(key)]
    trained = sum(state[key].numel() for key in names)
    assert round(trained / 1e6, 2) == PUBLISHED[name][-1]


def test_a_deeper_position_head_is_that_of_deim(make_checkpoint: MakeCheckpoint) -> None:
    config = replace(published("R50-m"), layers=3, position_depth=3)
    spec = RTDetrV2().infer(make_checkpoint(official_state(config)), "official", FamilyOptions())
    assert (spec.variant, spec.config["activation"]) == ("DEIM-RT-DETRv2 R50-m", "silu")
    with torch.device("meta"):
        head = RTDetrV2().build(spec).decoder.query_pos_head
    assert [layer.weight.shape for layer in head.layers] == [(256, 4), (256, 256), (256, 256)]
    assert isinstance(head.act, nn.SiLU)


def hugging_face(randomize: Callable[[nn.Module, int], nn.Module], *, bottleneck: bool, expansion: float) -> Any:
    from transformers import RTDetrV2Config, RTDetrV2ForObjectDetection
    from transformers.models.rt_detr.configuration_rt_detr_resnet import RTDetrResNetConfig

    widths = [32, 64, 96, 128] if bottleneck else [8, 16, 24, 32]
    backbone = RTDetrResNetConfig(
        embedding_size=widths[0] if not bottleneck else 12,
        hidden_sizes=widths,
        depths=[1, 2, 1, 1],
        layer_type="bottleneck" if bottleneck else "basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrV2Config(
        backbone_config=backbone,
        encoder_hidden_dim=48,
        encoder_in_channels=widths[1:],
        encoder_ffn_dim=56,
        hidden_expansion=expansion,
        d_model=64,
        decoder_in_channels=[48, 48, 48],
        decoder_ffn_dim=72,
        decoder_attention_heads=4,
        decoder_layers=2,
        num_queries=20,
        num_labels=5,
    )
    torch.manual_seed(0)
    model = randomize(RTDetrV2ForObjectDetection(config), 1)
    generator = torch.Generator().manual_seed(2)
    for key, buffer in model.named_buffers():
        if key.endswith("running_mean"):
            buffer.normal_(0, 0.1, generator=generator)
        if key.endswith("running_var"):
            buffer.uniform_(0.5, 1.5, generator=generator)
    return model


@pytest.mark.parametrize(("bottleneck", "expansion"), [(False, 0.5), (True, 1.0)])
def test_it_computes_what_transformers_computes(
    make_checkpoint: MakeCheckpoint,
    randomize: Callable[[nn.Module, int], nn.Module],
    bottleneck: bool,
    expansion: float,
) -> None:
    reference = hugging_face(randomize, bottleneck=bottleneck, expansion=expansion)
    state = {key: value.clone() for key, value in reference.state_dict().items()}
    checkpoint = make_checkpoint(state, name="model.safetensors", config={"num_queries": 20})
    family, spec = identify(checkpoint, FamilyOptions(size_hw=(SIDE, SIDE)))
    assert spec.layout == "huggingface"
    # As built, without the folding of norms, which rounds to float32.
    module = family.build(spec)
    fill(module, family.remap(checkpoint, spec), family, source="model.safetensors")
    # On maps that are not square the official position embedding is another one: see `sincos_position`.
    images = torch.rand(2, 3, SIDE, SIDE, dtype=torch.float64)
    with torch.inference_mode():
        wanted = reference.double()(pixel_values=images)
        logits, boxes = module.double()(images)
    assert (logits - wanted.logits).abs().max() < 1e-5
    assert (boxes - wanted.pred_boxes).abs().max() < 1e-6


def test_a_folder_that_transformers_saves_is_read(
    randomize: Callable[[nn.Module, int], nn.Module], tmp_path: Path
) -> None:
    reference = hugging_face(randomize, bottleneck=False, expansion=0.5)
    reference.save_pretrained(tmp_path)
    loaded = load_model(read_checkpoint(tmp_path), FamilyOptions(size_hw=(SIDE, SIDE)))
    assert (loaded.spec.layout, loaded.spec.config["queries"]) == ("huggingface", 20)
    images = torch.rand(1, 3, SIDE, SIDE)
    with torch.inference_mode():
        wanted = reference(pixel_values=images)
        logits, boxes = loaded.wrapper(images)
    rows = (values[0].numpy() for values in (wanted.logits, wanted.pred_boxes, logits, boxes))
    assert match_queries(*rows).unmatched(box_atol=1e-4, logit_atol=1e-3) == 0


@pytest.mark.parametrize("value", [0, -1, "300", [300], {}, 1.5, True])
def test_a_config_with_another_number_of_queries_is_refused(
    value: object, randomize: Callable[[nn.Module, int], nn.Module], tmp_path: Path
) -> None:
    hugging_face(randomize, bottleneck=False, expansion=0.5).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_queries": value}))
    with pytest.raises(CheckpointError, match=r"num_queries is .*; expected a number from 1"):
        identify(read_checkpoint(tmp_path), FamilyOptions(size_hw=(SIDE, SIDE)))


def test_names_that_older_transformers_wrote_are_read(randomize: Callable[[nn.Module, int], nn.Module]) -> None:
    state = hugging_face(randomize, bottleneck=False, expansion=1.0).state_dict()
    older = {
        key.replace(".mlp.fc", ".fc")
        .replace(".o_proj.", ".out_proj.")
        .replace(".encoder.aifi.", ".encoder.encoder."): value
        for key, value in state.items()
    }
    assert older.keys() != state.keys()
    first, second = from_hugging_face(state), from_hugging_face(older)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_two_copies_of_a_head_must_agree(randomize: Callable[[nn.Module, int], nn.Module]) -> None:
    state = dict(hugging_face(randomize, bottleneck=False, expansion=1.0).state_dict())
    assert torch.equal(state["class_embed.0.weight"], state["model.decoder.class_embed.0.weight"])
    state["class_embed.0.weight"] = state["class_embed.0.weight"] + 1
    with pytest.raises(CheckpointError, match="twice, under two names"):
        from_hugging_face(state)
    del state["class_embed.0.weight"], state["model.decoder.layers.0.self_attn.k_proj.bias"]
    with pytest.raises(CheckpointError, match=r"lacks a part of 'decoder.decoder.layers.0.self_attn'"):
        from_hugging_face(state)


def test_the_middle_size_answers_after_its_third_layer(randomize: Callable[[nn.Module, int], nn.Module]) -> None:
    small = {
        "stem": (8, 8),
        "channels": (8, 8, 8, 8),
        "in_channels": (32, 32, 32),
        "encoder_ffn": 16,
        "decoder_ffn": 16,
    }
    config = replace(published("R50-m"), classes=3, **small)
    six = randomize(build_model(config, input_hw=(64, 64), queries=7, act="relu"), 3)
    three = build_model(replace(config, layers=3), input_hw=(64, 64), queries=7, act="relu")
    three.load_state_dict(six.state_dict(), strict=False)
    images = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        for one, other in zip(six(images), three(images), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["rtdetrv2_r18vd_dsp_3x.pth", "x-DSP.pth", "dsp.pth"])
def test_discrete_sampling_is_refused_by_the_name_of_the_file(name: str, make_checkpoint: MakeCheckpoint) -> None:
    checkpoint = make_checkpoint(official_state(published("R18")), name=name)
    with pytest.raises(UnknownFamilyError, match="discrete sampling"):
        RTDetrV2().infer(checkpoint, "official", FamilyOptions())


def test_the_graph_gives_what_the_module_gives(
    make_checkpoint: MakeCheckpoint, randomize: Callable[[nn.Module, int], nn.Module], tmp_path: Path
) -> None:
    state = hugging_face(randomize, bottleneck=True, expansion=0.5).state_dict()
    options = FamilyOptions(size_hw=(SIDE, SIDE), num_queries=20)
    loaded = load_model(make_checkpoint(state), options)
    (graph,) = export_graphs(loaded, [2], tmp_path, progress=lambda text: None)
    images = example_images(loaded, batch=2)
    with torch.inference_mode():
        wanted = [value.numpy() for value in loaded.wrapper(images)]
    found = ort.InferenceSession(graph.path, providers=["CPUExecutionProvider"]).run(None, {"images": images.numpy()})
    for row in range(2):
        matched = match_queries(*(np.asarray(values[row]) for values in (*wanted, *found)))
        assert matched.unmatched(box_atol=1e-4, logit_atol=1e-3) == 0
