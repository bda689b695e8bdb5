"""What the compiled kernels ask of their tensors: a wrong shape would be a read or write outside of memory."""

from __future__ import annotations

import torch


def require(condition: bool, what: str, *tensors: torch.Tensor | None) -> None:
    """ValueError that names what was expected and the shapes and types that came."""
    if not condition:
        came = ", ".join(f"{tuple(t.shape)} {t.dtype} stride {t.stride()}" for t in tensors if t is not None)
        raise ValueError(f"expected {what}; got {came or 'other values'}")


def is_matrix(x: torch.Tensor) -> bool:
    """Two axes of float32 on the CPU, contiguous rows with any distance."""
    return x.dim() == 2 and x.dtype == torch.float32 and x.is_cpu and (x.stride(1) == 1 or x.shape[1] == 1)


def is_heads(x: torch.Tensor, heads: int, head_dim: int) -> bool:
    """(rows, heads, head_dim) float32 on the CPU whose rows are contiguous and may be a slice of wider ones."""
    dense = x.stride()[1:] == (head_dim, 1) or heads == 1
    return x.shape[1:] == (heads, head_dim) and x.dtype == torch.float32 and x.is_cpu and dense and x.stride(2) == 1


def output(out: torch.Tensor | None, *shape: int) -> torch.Tensor:
    """`out`, checked, or a new tensor; float32 and contiguous."""
    if out is None:
        return torch.empty(shape)
    fits = out.shape == shape and out.dtype == torch.float32 and out.is_contiguous()
    require(fits, f"an output of contiguous float32 {shape}", out)
    return out


def pointer(tensor: torch.Tensor | None) -> int | None:
    """The address of the first element."""
    return None if tensor is None else tensor.data_ptr()
