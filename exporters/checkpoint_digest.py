"""What proves that weights were not changed: a digest of the tensors, beside the hash of their file."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vtk.exporters.checkpoint_hash import digest_tensors


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over sorted (name, dtype, shape, little-endian bytes in row-major order).

    It depends on neither the order nor the file format nor the strides in which the tensors are stored.
    """
    return digest_tensors(
        (name, str(tensor.dtype).removeprefix("torch."), tensor.shape, _raw_bytes(tensor).numpy().data)
        for name, tensor in sorted(tensors.items())
    )


def _raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.contiguous().reshape(-1).view(torch.uint8)
