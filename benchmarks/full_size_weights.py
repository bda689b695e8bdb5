"""Checkpoints of the published sizes with random weights, each in the layout of its official file.

    python benchmarks/full_size_weights.py NAME FILE [--small]

--small writes a model of the same make that tests can afford. Weights are drawn so that signals keep their size
through the depth, and batch norms hold the statistics of a picture, as training leaves them: an engine that is wrong
then answers wrongly, which with the weights of a plain constructor can stay unseen.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from vtk.assets import sample_pictures
from vtk.exporters.families.deimv2_config import DEIMv2Config
from vtk.exporters.families.deimv2_config import build_model as build_deimv2
from vtk.exporters.families.dfine_config import DFineConfig
from vtk.exporters.families.dfine_config import build_model as build_dfine
from vtk.exporters.families.rtdetrv2_infer import RTDetrConfig
from vtk.exporters.families.rtdetrv2_infer import build_model as build_rtdetr
from vtk.exporters.families.sam3_keys import to_module_names
from vtk.exporters.modules.deimv2_backbone import DinoSTA, STAConfig
from vtk.exporters.modules.dino_vit import DinoViT, ViTConfig, rope_periods
from vtk.exporters.modules.hgnetv2 import StageConfig
from vtk.exporters.modules.sam3 import Sam3
from vtk.exporters.modules.sam3_config import Sam3Config, Sam3PointConfig, Sam3TextConfig, Sam3VisionConfig
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode
from vtk.preprocess.recipe import Recipe

Tensors = dict[str, torch.Tensor]

SEED = 7
SIDE = 640
QUERIES = 300
# As training leaves a detector: nearly everything is nothing (the logit of 0.01), a query that one rounding selects
# moves the others little, boxes are refined and not thrown about, and most units are open. With noise alone roundings
# grow until two right runtimes differ.
PRIOR = 4.6
HEARING = 0.02
REFINING = 0.1
OPEN = 1.0
CLASSES = 80
# files in which the weights are one entry of several
NESTED = ("sam3", "rtdetrv2-r101", "deimv2-x", "dfine-x")
GOLDEN = Path(__file__).parents[1] / "tests" / "data" / "golden"

# DEIMv2's own names, where the module has others
_DEIMV2_NAMES = (
    (r"^backbone\.sta\.(stem|conv2)\.conv\.", r"backbone.sta.\1.0."),
    (r"^backbone\.sta\.(stem|conv2)\.norm\.", r"backbone.sta.\1.1."),
    (r"^backbone\.sta\.(conv[34])\.conv\.", r"backbone.sta.\1.1."),
    (r"^backbone\.sta\.(conv[34])\.norm\.", r"backbone.sta.\1.2."),
    (r"^backbone\.fuse\.(\d)\.conv\.", r"backbone.convs.\1."),
    (r"^backbone\.fuse\.(\d)\.norm\.", r"backbone.norms.\1."),
    (r"^encoder\.(down_sample\d)\.conv\.", r"encoder.\1.1."),
    (r"^encoder\.(down_sample\d)\.norm\.", r"encoder.\1.2."),
)
# in, mid and out channels of the stages of HGNetV2-B5, blocks, convolutions, kernel, light
_B5 = (
    (64, 64, 128, 1, 6, 3, False),
    (128, 128, 512, 2, 6, 3, False),
    (512, 256, 1024, 5, 6, 5, True),
    (1024, 512, 2048, 2, 6, 5, True),
)


def dinov3(config: ViTConfig) -> Tensors:
    """facebookresearch/dinov3: the backbone alone, key biases (where it has any) silenced by masks."""
    with torch.device("meta"):
        shapes = DinoViT(config).state_dict()
    del shapes["rope_embed.periods"]
    tensors = {name: drawn(name, tuple(value.shape)) for name, value in shapes.items()}
    tensors["rope_embed.periods"] = rope_periods(config)
    mask = torch.ones(3, config.dim)
    mask[1] = 0
    masked = range(config.depth if config.qkv_bias else 0)
    masks = {f"blocks.{index}.attn.qkv.bias_mask": mask.flatten().clone() for index in masked}
    return {**tensors, "mask_token": torch.zeros(1, config.dim), **masks}


def dinov3_l(small: bool) -> Tensors:
    dim, depth, heads = (64, 2, 4) if small else (1024, 24, 16)
    return dinov3(ViTConfig(dim, depth, heads, "mlp", 4 * dim, "gelu", 16, 4, True, 1e-5))


def dinov3_7b(small: bool) -> Tensors:
    dim, depth, heads = (64, 2, 2) if small else (4096, 40, 32)
    return dinov3(ViTConfig(dim, depth, heads, "swiglu", 2 * dim, "silu", 16, 4, False, 1e-5))


def deimv2_x(small: bool) -> Tensors:
    """The released file of X: DINOv3 S+ and its adapter; small: two decoder layers in place of six."""
    layers, last = (2, 1) if small else (6, 5)
    vit = ViTConfig(384, 12, 6, "swiglu", 1536, "silu", 16, 4, True, 1e-5)
    config = DEIMv2Config(
        hgnet=None,
        sta=STAConfig(vit, 64, 256, (5, 8, 11)),
        encoder="sum",
        levels=3,
        in_channels=(256,) * 3,
        hidden=256,
        encoder_ffn=1024,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=160,
        bottlenecks=4,
        dim=256,
        decoder_ffn=2048,
        gateway=True,
        layers=layers,
        heads=8,
        points=(3, 6, 3),
        classes=CLASSES,
        reg_max=32,
        reg_scale=4.0,
        up=0.5,
    )
    module = build_deimv2(config, input_hw=(SIDE, SIDE), queries=QUERIES)
    train(module)
    state = {named(key, _DEIMV2_NAMES): value for key, value in module.state_dict().items()}
    for key in [key for key in state if f"lqe_layers.{last}." in key or f"dec_score_head.{last}." in key]:
        state |= {key.replace(f".{last}.", f".{layer}.", 1): state[key] for layer in range(last)}
    return state | refining_scalars(config.up, config.reg_scale)


def rtdetrv2_r101(small: bool) -> Tensors:
    """lyuwenyu/RT-DETR; small: ResNet-18."""
    hidden = 256 if small else 384
    outs = (128, 256, 512) if small else (512, 1024, 2048)
    config = RTDetrConfig(
        depth=18 if small else 101,
        stem=(32, 64),
        blocks=(2, 2, 2, 2) if small else (3, 4, 23, 3),
        channels=(64, 128, 256, 512),
        bottleneck=not small,
        levels=3,
        in_channels=outs,
        hidden=hidden,
        encoder_ffn=1024 if small else 2048,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=128 if small else 384,
        bottlenecks=3,
        decoder_channels=(hidden,) * 3,
        dim=256,
        decoder_ffn=1024,
        layers=3 if small else 6,
        used=3 if small else 6,
        heads=8,
        points=(4, 4, 4),
        classes=CLASSES,
        position_depth=2,
    )
    module = build_rtdetr(config, input_hw=(SIDE, SIDE), queries=QUERIES, act="relu")
    train(module)
    return module.state_dict()


def dfine_x(small: bool) -> Tensors:
    """Peterande/D-FINE; small: two decoder layers in place of six."""
    layers = 2 if small else 6
    stages = tuple(StageConfig(*numbers, downsample=index > 0) for index, numbers in enumerate(_B5))
    config = DFineConfig(
        backbone="B5",
        stem=(32, 64),
        stages=stages,
        lab=False,
        frozen_bn=True,
        strides=(8, 16, 32),
        expansion=1.0,
        levels=3,
        in_channels=(512, 1024, 2048),
        hidden=384,
        encoder_ffn=2048,
        encoder_heads=8,
        encoder_layers=1,
        fusion_width=192,
        bottlenecks=3,
        dim=256,
        decoder_ffn=1024,
        layers=layers,
        heads=8,
        points=(3, 6, 3),
        classes=CLASSES,
        reg_max=32,
        reg_scale=8.0,
        up=0.5,
    )
    module = build_dfine(config, input_hw=(SIDE, SIDE), queries=QUERIES, act="relu")
    train(module)
    return module.state_dict() | refining_scalars(config.up, config.reg_scale)


def refining_scalars(up: float, reg_scale: float) -> Tensors:
    """Where the official files of D-FINE's line keep the numbers of their boxes."""
    pairs = {"up": torch.tensor([up]), "reg_scale": torch.tensor([reg_scale])}
    return {f"decoder.{below}{name}": value for below in ("", "decoder.") for name, value in pairs.items()}


def sam3(small: bool) -> Tensors:
    """facebookresearch/sam3, detector and tracker: names of the reduced golden file, shapes of the module."""
    config = sam3_config(small)
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in Sam3(config).state_dict().items()}
    template = sam3_template(config)
    owners = {like.untyped_storage().data_ptr(): name for name, like in template.items()}
    meant: dict[str, list[str]] = {}  # what the module calls a tensor of the file; three for packed projections
    for key, view in to_module_names(template, "official", "detector.").items():
        meant.setdefault(owners[view.untyped_storage().data_ptr()], []).append(key)
    missing = shapes.keys() - {key for keys in meant.values() for key in keys}
    assert not missing, sorted(missing)
    tensors = Tensors()
    for name, like in template.items():
        shape = shapes.get(meant[name][0])
        if name.endswith("freqs_cis"):
            tensors[name] = rotations(name, config.vision, config.grid)
        elif shape is None:
            tensors[name] = like  # has no effect on a picture
        elif len(meant[name]) == 3:
            tensors[name] = drawn(name, (3 * shape[0], *shape[1:]))
        elif name.endswith("trunk.pos_embed"):
            tensors[name] = drawn(name, (1, shape[1] + 1, shape[2]))
        else:
            tensors[name] = drawn(name, shape)
    return tensors


def sam3_config(small: bool) -> Sam3Config:
    """small: narrower and shallower, but with heads, windows and positions by which a file without a config is read."""
    width, depth = (512, 1) if small else (1024, 6)
    vision = Sam3VisionConfig(
        dim=width,
        depth=2 if small else 32,
        heads=width // 64,
        ffn=512 if small else 4736,
        patch=14,
        side=8 if small else 24,
        window=8 if small else 24,
        global_blocks=(1,) if small else (7, 15, 23, 31),
    )
    return Sam3Config(
        vision=vision,
        text=Sam3TextConfig(width, 1 if small else 24, width // 64, 4 * width, 32, 49408),
        dim=256,
        heads=8,
        queries=20 if small else 200,
        grid=16 if small else 72,
        roi=7,
        geometry_depth=1 if small else 3,
        geometry_ffn=2048,
        encoder_depth=depth,
        encoder_ffn=2048,
        decoder_depth=depth,
        decoder_ffn=2048,
        scoring_ffn=2048,
        point_prompts=Sam3PointConfig(256, 8, 128, 2, 2048, 4, 256),
    )


def sam3_template(config: Sam3Config) -> Tensors:
    """The golden file with a tracker, its layers repeated or left out, each tensor in a storage of its own."""
    spec = importlib.util.spec_from_file_location("sam3_tracker", GOLDEN.parent / "sam3_tracker.py")
    assert spec is not None
    assert spec.loader is not None
    tracker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tracker)
    depths = {
        "trunk.blocks": config.vision.depth,
        "transformer.resblocks": config.text.depth,
        "geometry_encoder.encode": config.geometry_depth,
        "detector.transformer.encoder.layers": config.encoder_depth,
        "detector.transformer.decoder.layers": config.decoder_depth,
    }
    template = Tensors()
    for name, like in tracker.official_tensors(GOLDEN, tracker.make_tracker(GOLDEN)).items():
        for repeated in layers(name, depths):
            template[repeated] = like.clone()
    return template


def layers(name: str, depths: Mapping[str, int]) -> Iterator[str]:
    """The name of a first layer becomes those of all layers; later layers none; other names stay."""
    for stem, depth in depths.items():
        if found := re.search(rf"{re.escape(stem)}\.(\d+)\.", name):
            if found[1] == "0":
                yield from (name.replace(found[0], f"{stem}.{index}.") for index in range(depth))
            return
    yield name


def rotations(name: str, vision: Sam3VisionConfig, grid: int) -> torch.Tensor:
    """The official file's table of a block, of which only the shape is read."""
    found = re.search(r"blocks\.(\d+)\.", name)
    assert found is not None
    side = grid if int(found[1]) in vision.global_blocks else vision.window
    return torch.zeros(side**2, vision.dim // vision.heads // 2, dtype=torch.complex64)


def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Noise by the name of a tensor: near 1 for scales, little for biases, by the width of the input for the rest."""
    noise = torch.randn(shape)
    if re.search(r"(norm\w*|bn|ln_\w+|norms\.\d|final_norm)\.weight$|\.scale$|running_var$", name):
        return 1 + 0.1 * noise.abs()
    if name.endswith("gamma"):
        return 0.3 + 0.05 * noise
    if re.search(r"token_embedding", name):
        return 0.1 * noise
    if re.search(r"bias$|running_mean$", name):
        return 0.05 * noise
    if len(shape) < 2 or re.search(r"(embed\w*|token\w*|tokens|frequencies|gaussian_matrix)(\.weight)?$", name):
        return 0.5 * noise
    transposed = re.search(r"dconv|output_upscaling", name) is not None
    return noise / math.sqrt(shape[0] if transposed else math.prod(shape[1:]))


def train(module: nn.Module) -> None:
    """Draw the weights of a detector, and let its batch norms see two pictures."""
    fixed = ("num_points_scale", "periods", "num_batches_tracked")
    for name, value in module.state_dict().items():
        if not name.endswith(fixed) and value.is_floating_point():
            value.copy_(drawn(name, tuple(value.shape)))
            if re.search(r"score_head.*bias$", name):
                value.sub_(PRIOR)
            if re.search(r"decoder\.layers\.\d+\.self_attn\.out_proj\.weight$", name):
                value.mul_(HEARING)
            if re.search(r"bbox_head\..*layers\.2\.weight$", name):
                value.mul_(REFINING)
    norms = [item for item in module.modules() if isinstance(item, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of all that it sees
        norm.reset_running_stats()
        norm.bias.add_(OPEN)
        norm.train()
    with torch.no_grad(), baked(module):
        module(pictures())
    for norm in norms:
        norm.eval()


@contextmanager
def baked(module: nn.Module) -> Iterator[None]:
    """DEIMv2's transformer can only run with the tables of one input size, which its checkpoints do not hold."""
    backbone = module.backbone
    if not isinstance(backbone, DinoSTA):
        yield
        return
    stored = backbone.dinov3
    backbone.bake()
    yield
    backbone.dinov3 = stored


def pictures() -> torch.Tensor:
    """(2, 3, SIDE, SIDE): the pictures that an export verifies on."""
    recipe = Recipe(size_hw=(SIDE, SIDE))
    tensors = [preprocess(decode(path), recipe).tensor for path in sample_pictures()[:2]]
    return torch.from_numpy(np.stack(tensors))


def named(key: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


MODELS: Mapping[str, Callable[[bool], Tensors]] = {
    "sam3": sam3,
    "deimv2-x": deimv2_x,
    "rtdetrv2-r101": rtdetrv2_r101,
    "dinov3-l": dinov3_l,
    "dfine-x": dfine_x,
    "dinov3-7b": dinov3_7b,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(SEED)
    with torch.no_grad():
        tensors = MODELS[args.name](args.small)
    torch.save({"model": tensors} if args.name in NESTED else tensors, args.file)
    floating = sum(value.numel() for value in tensors.values() if value.is_floating_point())
    print(f"{args.name}: {floating / 1e6:.1f} M numbers in {args.file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
