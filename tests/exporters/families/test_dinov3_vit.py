from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import timm
import torch
from torch import nn
from transformers import DINOv3ViTConfig, DINOv3ViTModel

from vtk.errors import CheckpointError, UsageError, WeightsMismatchError
from vtk.exporters.checkpoint import Checkpoint, read_checkpoint
from vtk.exporters.families.dinov3_vit import SAT_MEAN, SAT_STD, DINOv3ViT
from vtk.exporters.family import FamilyOptions
from vtk.exporters.load import load_model
from vtk.exporters.modules.dino_vit import rope_tables, rotate_half
from vtk.exporters.registry import recognize
from vtk.exporters.to_onnx import export_graphs
from vtk.preprocess.recipe import IMAGENET_MEAN, IMAGENET_STD, Recipe

GOLDEN = ("dinov3_vit_mlp", "dinov3_vit_swiglu")
SIZES = ((224, 224), (192, 320))
NO_OPTIONS = FamilyOptions()

Tensors = dict[str, torch.Tensor]
Make = Callable[..., Checkpoint]
Run = Callable[..., dict[str, torch.Tensor]]
Randomize = Callable[[nn.Module, int], nn.Module]


@pytest.fixture(scope="module")
def inputs(golden_dir: Path) -> dict[str, torch.Tensor]:
    with np.load(golden_dir / "dinov3_inputs.npz") as stored:
        return {key: torch.from_numpy(stored[key]) for key in stored}


def distance(outputs: Tensors, cls: torch.Tensor, registers: torch.Tensor, patches: torch.Tensor) -> float:
    wanted = {"cls": cls, "registers": registers, "patches": patches}
    assert outputs.keys() == wanted.keys()
    assert all(outputs[name].shape == wanted[name].shape for name in wanted)
    return max(float((outputs[name] - wanted[name]).abs().max()) for name in wanted)


@pytest.mark.parametrize("size_hw", SIZES)
@pytest.mark.parametrize("name", GOLDEN)
def test_equals_the_official_code(
    name: str, size_hw: tuple[int, int], golden_dir: Path, inputs: Tensors, run_model: Run
) -> None:
    size = f"{size_hw[0]}x{size_hw[1]}"
    outputs = run_model(read_checkpoint(golden_dir / f"{name}.pth"), inputs[f"input_{size}"])
    with np.load(golden_dir / f"{name}_expected.npz") as stored:
        expected = [torch.from_numpy(stored[f"{key}_{size}"]) for key in ("cls", "registers", "patch")]
    assert distance(outputs, *expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("dinov3_vit_mlp", {"depth": 4, "heads": 2, "ffn": "mlp", "ffn_dim": 512, "activation": "gelu",
                            "qkv_bias": True, "key_bias_mask": True}),
        ("dinov3_vit_swiglu", {"depth": 2, "heads": 1, "ffn": "swiglu", "ffn_dim": 256, "activation": "silu",
                               "qkv_bias": False, "key_bias_mask": False}),
    ],
)  # fmt: skip
def test_infers_every_number_from_the_tensors(name: str, facts: dict[str, Any], golden_dir: Path) -> None:
    checkpoint = read_checkpoint(golden_dir / f"{name}.pth")
    spec = load_model(checkpoint, NO_OPTIONS).spec
    common = {"dim": 128, "patch": 16, "registers": 4, "rope_base": 100.0, "norm_eps": 1e-5, "grid_hw": (16, 16)}
    assert {key: spec.config[key] for key in (common | facts)} == common | facts
    assert (spec.family, spec.variant, spec.layout, spec.task) == ("dinov3-vit", "custom", "official", "embed")
    assert spec.recipe == Recipe((256, 256), "stretch", "pil_bilinear", IMAGENET_MEAN, IMAGENET_STD)
    assert {"layer_norm", "attention_scores", "softmax", "rope"} <= set(spec.fp32_islands)  # case V09


@pytest.mark.parametrize(
    ("dim", "depth", "ffn", "ffn_dim", "variant", "heads"),
    [
        (384, 12, "fc1", 1536, "ViT-S/16", 6),
        (384, 12, "w1", 1536, "ViT-S+/16", 6),
        (768, 12, "fc1", 3072, "ViT-B/16", 12),
        (1024, 24, "fc1", 4096, "ViT-L/16", 16),
        (1024, 24, "w1", 4096, "ViT-L+/16", 16),
        (1280, 32, "w1", 5120, "ViT-H+/16", 20),
        (4096, 40, "w1", 8192, "ViT-7B/16", 32),
    ],
)
def test_names_the_released_variants(
    dim: int, depth: int, ffn: str, ffn_dim: int, variant: str, heads: int, make_checkpoint: Make
) -> None:
    checkpoint = make_checkpoint(skeleton(dim, depth, ffn, ffn_dim, head_dim=dim // heads))
    spec = DINOv3ViT().infer(checkpoint, "official", NO_OPTIONS)
    assert (spec.variant, spec.config["heads"]) == (variant, heads)
    timm_like = {key: value for key, value in checkpoint.tensors.items() if key != "rope_embed.periods"}
    assert DINOv3ViT().infer(make_checkpoint(timm_like), "official", NO_OPTIONS).config["heads"] == heads


def skeleton(dim: int, depth: int, ffn: str, ffn_dim: int, *, head_dim: int) -> Tensors:
    """The few tensors that inference reads, without data."""
    shapes = {
        "cls_token": (1, 1, dim),
        "storage_tokens": (1, 4, dim),
        "patch_embed.proj.weight": (dim, 3, 16, 16),
        "rope_embed.periods": (head_dim // 4,),
        f"blocks.0.mlp.{ffn}.weight": (ffn_dim, dim),
        "blocks.0.ls1.gamma": (dim,),
    } | {f"blocks.{block}.norm1.weight": (dim,) for block in range(depth)}
    return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


# ---- layouts (case V31)


def to_hf(official: Tensors, *, blocks: str = "model.layer.") -> Tensors:
    """The inverse of our map: what Hugging Face's conversion writes from an official file."""
    renamed = {}
    swiglu = any(".mlp.w1." in key for key in official)
    names = (
        {"w1": "gate_proj", "w2": "up_proj", "w3": "down_proj"} if swiglu else {"fc1": "up_proj", "fc2": "down_proj"}
    )
    for key, value in official.items():
        if key.endswith("bias_mask") or key.startswith(("rope_embed", "local_cls_norm")):
            continue
        new = re.sub(r"^blocks\.", blocks, key)
        new = re.sub(r"^(cls_token|mask_token)", r"embeddings.\1", new)
        new = new.replace("storage_tokens", "embeddings.register_tokens")
        new = new.replace("patch_embed.proj", "embeddings.patch_embeddings").replace("attn.proj", "attention.o_proj")
        new = re.sub(r"\.ls(\d)\.gamma", r".layer_scale\1.lambda1", new)
        new = re.sub(r"\.mlp\.(\w+)\.", lambda match: f".mlp.{names[match.group(1)]}.", new)
        if ".attn.qkv." in new:
            for letter, part in zip("qkv", value.chunk(3), strict=True):
                if not (letter == "k" and new.endswith("bias")):
                    renamed[new.replace("attn.qkv", f"attention.{letter}_proj")] = part
        else:
            renamed[new] = value
    return renamed


def to_timm(official: Tensors) -> Tensors:
    renamed = {}
    for key, value in official.items():
        if key.endswith(("bias_mask", "mask_token")) or key.startswith(("rope_embed", "local_cls_norm")):
            continue
        new = re.sub(r"\.ls(\d)\.gamma", r".gamma_\1", key).replace("storage_tokens", "reg_token")
        new = new.replace("mlp.w1", "mlp.fc1_g").replace("mlp.w2", "mlp.fc1_x").replace("mlp.w3", "mlp.fc2")
        if new.endswith("attn.qkv.bias"):
            q, _, v = value.chunk(3)
            renamed[new.replace("qkv.bias", "q_bias")], renamed[new.replace("qkv.bias", "v_bias")] = q, v
        else:
            renamed[new] = value
    return renamed


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("layout", ["hf", "hf 4.x", "timm"])
def test_other_layouts_give_the_same_outputs(
    name: str, layout: str, golden_dir: Path, inputs: Tensors, make_checkpoint: Make, run_model: Run
) -> None:
    official = read_checkpoint(golden_dir / f"{name}.pth")
    tensors = dict(official.tensors)
    converted = {"hf": to_hf(tensors), "hf 4.x": to_hf(tensors, blocks="layer."), "timm": to_timm(tensors)}[layout]
    heads = 4 * tensors["rope_embed.periods"].numel()
    config = {"num_attention_heads": 128 // heads}
    checkpoint = make_checkpoint(converted, config=config)
    assert recognize(checkpoint, NO_OPTIONS)[1] == layout.split()[0]
    images = inputs["input_192x320"]
    wanted = run_model(official, images)
    assert distance(run_model(checkpoint, images), **wanted) <= 1e-6


@pytest.mark.parametrize("gated", [False, True])
def test_equals_transformers(gated: bool, make_checkpoint: Make, run_model: Run, randomize: Randomize) -> None:
    config = DINOv3ViTConfig(
        hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=160, use_gated_mlp=gated,
        hidden_act="silu" if gated else "gelu", num_register_tokens=2, rope_theta=37.0, layer_norm_eps=1e-3,
    )  # fmt: skip
    peer = randomize(DINOv3ViTModel(config), 1)
    checkpoint = make_checkpoint(peer.state_dict(), config=config.to_dict())
    images = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        tokens = peer(images).last_hidden_state
    outputs = run_model(checkpoint, images)
    assert distance(outputs, tokens[:, 0], tokens[:, 1:3], tokens[:, 3:]) < 1e-5


@pytest.mark.parametrize("name", ["vit_small_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3"])
def test_equals_timm(name: str, make_checkpoint: Make, run_model: Run, randomize: Randomize) -> None:
    peer = randomize(timm.create_model(name, embed_dim=128, depth=2, num_heads=2, img_size=(48, 80)), 3)
    images = torch.randn(2, 3, 48, 80, generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        tokens = peer.forward_features(images)
    outputs = run_model(make_checkpoint(peer.state_dict()), images)
    assert distance(outputs, tokens[:, 0], tokens[:, 1:5], tokens[:, 5:]) < 1e-5


# ---- what tensors cannot tell


def test_masked_key_bias_matters(golden_dir: Path, inputs: Tensors, make_checkpoint: Make, run_model: Run) -> None:
    official = read_checkpoint(golden_dir / "dinov3_vit_mlp.pth")
    unmasked = {key: value for key, value in official.tensors.items() if not key.endswith("bias_mask")}
    images = inputs["input_192x320"]
    assert distance(run_model(make_checkpoint(unmasked), images), **run_model(official, images)) > 1e-3


def test_mask_of_nan_is_refused(golden_dir: Path, make_checkpoint: Make) -> None:
    tensors = dict(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth").tensors)
    key = "blocks.1.attn.qkv.bias_mask"
    tensors[key] = torch.full_like(tensors[key], torch.nan)
    with pytest.raises(CheckpointError, match=r"blocks\.1\.attn\.qkv\.bias_mask"):
        load_model(make_checkpoint(tensors), NO_OPTIONS)


def test_heads_of_a_custom_model_are_an_assumption(golden_dir: Path, make_checkpoint: Make) -> None:
    converted = to_timm(dict(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth").tensors))
    spec = load_model(make_checkpoint(converted), NO_OPTIONS).spec
    choice = next(item for item in spec.choices if item.name == "attention heads")
    assert (choice.value, choice.assumed, spec.config["heads"]) == ("2", True, 2)
    stated = load_model(make_checkpoint(converted, config={"num_attention_heads": 4}), NO_OPTIONS).spec
    assert stated.config["heads"] == 4
    assert not any(item.name == "attention heads" for item in stated.choices)


def test_heads_that_do_not_divide_the_width_are_refused(golden_dir: Path, make_checkpoint: Make) -> None:
    converted = to_timm(dict(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth").tensors))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(make_checkpoint(converted, config={"num_attention_heads": 7}), NO_OPTIONS)


L, B, SEVEN_B = (1024, 24, "fc1", 4096), (768, 12, "fc1", 3072), (4096, 40, "w1", 8192)


@pytest.mark.parametrize(
    ("shape", "file", "local_norm", "asked", "data", "assumed"),
    [
        (L, "x.pth", True, None, "sat", False),
        (L, "x.pth", False, None, "lvd", False),
        (L, "x.pth", True, "lvd", "lvd", False),
        (SEVEN_B, "x.pth", True, None, "lvd", True),
        (SEVEN_B, "x.pth", True, "sat", "sat", False),
        (SEVEN_B, "dinov3_vit7b16_pretrain_sat493m-a6675841.pth", True, None, "sat", False),
        (SEVEN_B, "dinov3_vit7b16_pretrain_lvd1689m-a955f4ea.pth", True, None, "lvd", False),
        (B, "x.pth", False, None, "lvd", None),
    ],
)
def test_normalization_follows_the_pretraining_data(
    shape: tuple[int, int, str, int],
    file: str,
    local_norm: bool,
    asked: Any,
    data: str,
    assumed: bool | None,
    make_checkpoint: Make,
) -> None:
    tensors = skeleton(*shape, head_dim=64)
    if local_norm:
        tensors["local_cls_norm.weight"] = torch.empty(shape[0], device="meta")
    options = FamilyOptions(pretrain_data=asked)
    spec = DINOv3ViT().infer(make_checkpoint(tensors, name=file), "official", options)
    assert (spec.recipe.mean, spec.recipe.std) == {
        "lvd": (IMAGENET_MEAN, IMAGENET_STD),
        "sat": (SAT_MEAN, SAT_STD),
    }[data]
    assert [choice.assumed for choice in spec.choices] == ([] if assumed is None else [assumed])
    assert [choice.flag for choice in spec.choices] == ([] if assumed is None else ["--pretrain-data"])


@pytest.mark.parametrize(
    ("size_hw", "nearest"), [((224, 230), "224,224 or 224,240"), ((8, 16), "16,16"), ((1, 500), "16,496 or 16,512")]
)
def test_other_sizes_name_the_nearest(size_hw: tuple[int, int], nearest: str, golden_dir: Path) -> None:
    checkpoint = read_checkpoint(golden_dir / "dinov3_vit_mlp.pth")
    with pytest.raises(UsageError, match=nearest):
        load_model(checkpoint, FamilyOptions(size_hw=size_hw))


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"num_queries": 300}, "--num-queries"),
        ({"class_names": ("cat",)}, "--labels"),
        ({"family": "dinov3-vit", "timm_name": "test_vit"}, "--timm-name"),
    ],
)
def test_options_of_other_families_are_refused(options: dict[str, Any], flag: str, golden_dir: Path) -> None:
    with pytest.raises(UsageError, match=flag):
        load_model(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth"), FamilyOptions(**options))


@pytest.mark.parametrize("extra", ["cls_norm.weight", "head.weight", "blocks.0.attn.q_norm.weight"])
def test_any_tensor_without_a_place_is_an_error(extra: str, golden_dir: Path, make_checkpoint: Make) -> None:
    tensors = dict(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth").tensors) | {extra: torch.ones(3)}
    with pytest.raises(WeightsMismatchError, match=re.escape(extra)):
        load_model(make_checkpoint(tensors), NO_OPTIONS)


def test_a_missing_tensor_is_an_error(golden_dir: Path, make_checkpoint: Make) -> None:
    tensors = dict(read_checkpoint(golden_dir / "dinov3_vit_mlp.pth").tensors)
    del tensors["blocks.2.ls2.gamma"]
    with pytest.raises(WeightsMismatchError, match=r"blocks\.2\.ls2\.gamma"):
        load_model(make_checkpoint(tensors), NO_OPTIONS)


def test_half_precision_weights_run_in_float32(golden_dir: Path, make_checkpoint: Make) -> None:  # case V37
    tensors = {
        key: value.bfloat16() for key, value in read_checkpoint(golden_dir / "dinov3_vit_mlp.pth").tensors.items()
    }
    wrapper = load_model(make_checkpoint(tensors), NO_OPTIONS).wrapper
    dtypes = {value.dtype for value in (*wrapper.parameters(), *wrapper.buffers())}
    assert dtypes == {torch.float32}


# ---- RoPE (cases V07, V08, V36)


def test_rope_is_computed_in_float32() -> None:
    periods = 100.0 ** (torch.arange(16, dtype=torch.float64) / 16)
    cos, sin = rope_tables(periods.to(torch.bfloat16), (8, 8))
    assert cos.dtype == sin.dtype == torch.float32
    exact = periods.to(torch.bfloat16).double()
    centers = (torch.arange(8, dtype=torch.float64) + 0.5) / 4 - 1
    for row, column in ((0, 0), (3, 5), (7, 7)):
        angles = torch.cat([2 * torch.pi * centers[row] / exact, 2 * torch.pi * centers[column] / exact]).repeat(2)
        assert (cos[8 * row + column].double() - angles.cos()).abs().max() < 2e-6
        assert (sin[8 * row + column].double() - angles.sin()).abs().max() < 2e-6


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 0.029), (torch.float16, 0.0025)])
def test_rope_in_half_precision_would_be_far_off(dtype: torch.dtype, error: float) -> None:
    """Case V36: 64 patches per side. What the tables avoid, and how near they are to the exact ones."""
    periods = 100.0 ** (torch.arange(16, dtype=torch.float64) / 16)

    def angles(kind: torch.dtype) -> torch.Tensor:
        centers = (torch.arange(64, dtype=kind) + 0.5) / 64 * 2 - 1
        places = torch.stack(torch.meshgrid(centers, centers, indexing="ij"), dim=-1).flatten(0, 1)
        return (2 * torch.pi * places[:, :, None] / periods.to(kind)).flatten(1).repeat(1, 2).double()

    exact = angles(torch.float64).cos()
    assert float((angles(dtype).cos() - exact).abs().max()) == pytest.approx(error, rel=0.02)
    assert float((rope_tables(periods, (64, 64))[0] - exact).abs().max()) < 2e-6


def test_rotation_pairs_halves_not_neighbors() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert rotate_half(x).tolist() == [-3.0, -4.0, 1.0, 2.0]
    interleaved = torch.stack([-x[1::2], x[::2]], dim=-1).flatten()
    assert interleaved.tolist() == [-2.0, 1.0, -4.0, 3.0]


@pytest.mark.parametrize("seed", range(5))
def test_rotation_keeps_lengths_and_leaves_prefix_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    periods = torch.rand(8, generator=generator) * 10 + 0.5
    cos, sin = rope_tables(periods, (2, 4), num_prefix=2)
    x = torch.randn(10, 32, generator=generator)
    turned = x * cos + rotate_half(x) * sin
    assert torch.equal(turned[:2], x[:2])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert (turned[2:] - x[2:]).abs().amax(dim=-1).min() > 1e-2


@pytest.mark.parametrize("size", [224, 512])
def test_graph_is_static_with_plain_attention(size: int, tmp_path: Path, make_checkpoint: Make) -> None:
    config = DINOv3ViTConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=1, intermediate_size=64)
    torch.manual_seed(0)
    checkpoint = make_checkpoint(DINOv3ViTModel(config).state_dict(), config=config.to_dict())
    loaded = load_model(checkpoint, FamilyOptions(size_hw=(size, size)))
    (graph,) = export_graphs(loaded, [1], tmp_path, progress=lambda _: None)
    assert graph.lint.errors == ()
    model = onnx.load(str(graph.path))
    operations = [node.op_type for node in model.graph.node]
    assert not {"If", "Range", "Tile", "Loop", "Sin", "Cos", "Resize"} & set(operations)
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = loaded.wrapper(images)
    session = ort.InferenceSession(str(graph.path), providers=["CPUExecutionProvider"])
    came = session.run([spec.name for spec in loaded.spec.outputs], {"images": images.numpy()})
    assert max(float(np.abs(a - b.numpy()).max()) for a, b in zip(came, wanted, strict=True)) < 1e-5
    assert_query_is_scaled_first(model)


def assert_query_is_scaled_first(model: onnx.ModelProto) -> None:
    """Case V06: the first MatMul of attention gets q * head_dim ** -0.5, so that half precision cannot overflow."""
    producer = {name: node for node in model.graph.node for name in node.output}
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    softmaxes = [node for node in model.graph.node if node.op_type == "Softmax"]
    assert softmaxes
    for softmax in softmaxes:
        scores = producer[softmax.input[0]]
        assert scores.op_type == "MatMul"
        scaled = producer[scores.input[0]]
        assert scaled.op_type == "Mul"
        factors = [float(constants[name]) for name in scaled.input if name in constants and constants[name].size == 1]
        assert factors == pytest.approx([64**-0.5])


def test_loading_twice_gives_the_same_bits(golden_dir: Path, inputs: Tensors, run_model: Run) -> None:
    checkpoint = read_checkpoint(golden_dir / "dinov3_vit_swiglu.pth")
    first, second = (run_model(checkpoint, inputs["input_192x320"]) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_large_model_is_held_once(golden_dir: Path) -> None:
    """The module takes the tensors of the file themselves, which are read from it when used."""
    checkpoint = read_checkpoint(golden_dir / "dinov3_vit_mlp.pth")
    wrapper = load_model(checkpoint, FamilyOptions()).wrapper
    stored = {value.data_ptr() for value in checkpoint.tensors.values()}
    matrices = {name: value for name, value in wrapper.named_parameters() if value.ndim == 2}
    assert matrices
    assert all(value.data_ptr() in stored for value in matrices.values())
