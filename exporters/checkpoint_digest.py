"""What proves that weights were not changed: a digest of the tensors, beside the hash of their file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over sorted (name, dtype, shape, little-endian bytes in row-major order).

    It depends on neither the order nor the file format nor the strides in which the tensors are stored.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        header = json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        digest.update(f"{header}\n".encode())
        digest.update(_raw_bytes(tensor).numpy().data)
    return digest.hexdigest()


def _raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.contiguous().reshape(-1).view(torch.uint8)
