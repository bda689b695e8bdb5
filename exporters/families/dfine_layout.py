"""Checkpoint layouts of D-FINE and DEIM: as trained, and with convolutions fused by the official `deploy()`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch

from vtk.errors import CheckpointError

_FUSED = re.compile(r"(encoder\..+)\.conv_bn_fused\.weight")
_REP_VGG = re.compile(r"(encoder\..+\.bottlenecks\.\d+)\.conv\.weight")
_BATCH_NORM_EPS = 1e-5


def is_deployed(tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether `deploy()` was called before saving."""
    return any(_FUSED.fullmatch(key) for key in tensors)


def as_trained(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights under the training names: a fused convolution becomes one with a norm that does nothing."""
    out: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        fused, block = _FUSED.fullmatch(key), _REP_VGG.fullmatch(key)
        if fused:
            out.update(_conv_norm(fused[1], tensor, _bias_of(key, tensors)))
        elif block:
            bias = _bias_of(key, tensors)
            out.update(_conv_norm(f"{block[1]}.conv1", tensor, bias))
            out.update(_conv_norm(f"{block[1]}.conv2", torch.zeros_like(tensor[:, :, :1, :1]), torch.zeros_like(bias)))
        elif not _is_fused_bias(key, tensors):
            out[key] = tensor
    return out


def _bias_of(key: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    bias = tensors.get(re.sub(r"\.weight$", ".bias", key))
    if bias is None or bias.shape != tensors[key].shape[:1] or tensors[key].ndim != 4:
        raise CheckpointError(f"'{key}' must be the kernel of a fused convolution, with a bias of its width beside it.")
    return bias


def _is_fused_bias(key: str, tensors: Mapping[str, torch.Tensor]) -> bool:
    weight = re.sub(r"\.bias$", ".weight", key)
    return weight != key and weight in tensors and bool(_FUSED.fullmatch(weight) or _REP_VGG.fullmatch(weight))


def _conv_norm(prefix: str, weight: torch.Tensor, bias: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{prefix}.conv.weight", weight
    yield f"{prefix}.norm.weight", torch.ones_like(bias)
    yield f"{prefix}.norm.bias", bias
    yield f"{prefix}.norm.running_mean", torch.zeros_like(bias)
    # The norm divides by sqrt(variance + eps), which must be 1.
    yield f"{prefix}.norm.running_var", torch.full_like(bias, 1 - _BATCH_NORM_EPS)
