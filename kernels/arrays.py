"""The array types that a model may run over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

# What both have in common is all that the code over them may use: slices, assignment into them, +=, reshape, shape.
A = TypeVar("A", "torch.Tensor", "npt.NDArray[Any]")
