"""A detector with drawn weights, brought to where training leaves one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from random_weights.drawing import drawn
from torch import nn

from vtk.assets import sample_pictures
from vtk.exporters.modules.deimv2_backbone import DinoSTA
from vtk.preprocess.apply import preprocess
from vtk.preprocess.decode import decode
from vtk.preprocess.recipe import Recipe

SIDE = 640
# As training leaves a detector: nearly everything is nothing (the logit of 0.01), a query that one rounding selects
# moves the others little, boxes are refined and not thrown about, and most units are open. With noise alone roundings
# grow until two right runtimes differ.
PRIOR = 4.6
HEARING = 0.02
REFINING = 0.1
OPEN = 1.0


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
