"""SAM3 with its tracker at the published size, under the names of its official file."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from random_weights.drawing import Tensors, drawn

from vtk.exporters.families.sam3_keys import to_module_names
from vtk.exporters.modules.sam3 import Sam3
from vtk.exporters.modules.sam3_config import Sam3Config, Sam3PointConfig, Sam3TextConfig, Sam3VisionConfig

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "golden"


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
