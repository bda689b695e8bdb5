"""What the compiled kernels ask of their arrays: a wrong shape would be a read or write outside of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vtk.kernels.host_memory import FLOAT32, address, aligned_empty

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float32]


def require(condition: bool, what: str, *arrays: Array | torch.Tensor | None) -> None:
    """Raise `mismatch` unless the condition holds."""
    if not condition:
        raise mismatch(what, *arrays)


def mismatch(what: str, *arrays: Array | torch.Tensor | None) -> ValueError:
    """Names what was expected and the shapes and types that came."""
    came = ", ".join(f"{tuple(a.shape)} {a.dtype} {_steps(a)}" for a in arrays if a is not None)
    return ValueError(f"expected {what}; got {came or 'other values'}")


def _steps(array: Array | torch.Tensor) -> str:
    return f"strides {array.strides} bytes" if isinstance(array, np.ndarray) else f"stride {array.stride()}"


def is_matrix(x: Array) -> bool:
    """Two axes of float32, contiguous rows with any distance."""
    return x.ndim == 2 and x.dtype == FLOAT32 and (x.strides[1] == 4 or x.shape[1] == 1 or not x.size)


def is_rows(x: Array) -> bool:
    """Two axes of float32, rows that follow one another."""
    return x.ndim == 2 and x.dtype == FLOAT32 and x.flags.c_contiguous


def is_heads(x: Array, heads: int, head_dim: int) -> bool:
    """(rows, heads, head_dim) float32 whose rows are contiguous and may be a slice of wider ones."""
    if x.dtype != FLOAT32 or x.shape[1:] != (heads, head_dim):
        return False
    _, head_step, step = x.strides
    return (step == 4 and (head_step == 4 * head_dim or heads == 1)) or not x.size


def row_stride(x: Array) -> int:
    """Elements of float32 from one row to the next."""
    return x.strides[0] // 4


def output(out: Floats | None, *shape: int) -> Floats:
    """`out`, checked, or a new array; float32 and contiguous."""
    if out is None:
        return aligned_empty(shape, FLOAT32)
    fits = out.shape == shape and out.dtype == FLOAT32 and out.flags.c_contiguous
    require(fits, f"an output of contiguous float32 {shape}", out)
    return out


def pointer(array: Array | None) -> int | None:
    """The address of the first element."""
    return None if array is None else address(array)
