"""Rewriting a loaded module in eval mode into fewer convolutions that compute the same."""

from __future__ import annotations

from torch import nn
from torch.nn.functional import pad
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vtk.exporters.modules.hybrid_encoder import RepVGG

_NORM_NAMES = ("norm", "bn")


def fold_batch_norms(root: nn.Module) -> None:
    """Fold, in place, every batch norm (`norm` or `bn`) into the convolution (`conv`) of the same module."""
    for module in root.modules():
        conv = getattr(module, "conv", None)
        for name in _NORM_NAMES:
            norm = getattr(module, name, None)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module.conv = fuse_conv_bn_eval(conv, norm)
                setattr(module, name, nn.Identity().eval())


def merge_rep_vgg(root: nn.Module) -> None:
    """Replace, in place, every RepVGG block whose norms are folded by one 3x3 convolution and its activation."""
    for parent in list(root.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, RepVGG):
                setattr(parent, name, nn.Sequential(_merged(child), child.act).eval())


def _merged(block: RepVGG) -> nn.Conv2d:
    wide, point = block.conv1.conv, block.conv2.conv
    assert wide.bias is not None
    assert point.bias is not None
    wide.weight.data = wide.weight.data + pad(point.weight.data, (1, 1, 1, 1))
    wide.bias.data = wide.bias.data + point.bias.data
    return wide
