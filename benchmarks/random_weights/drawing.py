"""Numbers for the tensors of a checkpoint, by their names and shapes."""

from __future__ import annotations

import math
import re

import torch

Tensors = dict[str, torch.Tensor]


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
