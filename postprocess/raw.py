"""Raw engine outputs as finite float32 arrays of the expected rank, and the class filter over them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from vtk.errors import BackendError, UsageError
from vtk.postprocess.results import FloatArray

RawOutputs = Mapping[str, npt.NDArray[np.generic]]


def take(outputs: RawOutputs, name: str, *, ndim: int) -> FloatArray:
    """The output `name` of one picture as float32.

    Raises BackendError when it is not there, has another rank, or holds NaN or infinity: a half-precision engine that
    overflowed would otherwise look like a picture without objects.
    """
    if name not in outputs:
        raise BackendError(f"The engine has no output '{name}'; it gave {', '.join(sorted(outputs)) or 'nothing'}.")
    array = np.asarray(outputs[name], dtype=np.float32)
    if array.ndim != ndim:
        raise BackendError(f"Output '{name}' of one picture must have {ndim} dimensions, its shape is {array.shape}.")
    bad = array.size - int(np.count_nonzero(np.isfinite(array)))
    if bad:
        raise BackendError(
            f"Output '{name}' holds {bad} values of {array.size} that are NaN or infinite.",
            hint="Run vtk verify on the bundle; an engine that overflows must be built again in a wider precision.",
        )
    return array


def class_mask(num_classes: int, class_filter: frozenset[int] | None) -> npt.NDArray[np.bool_]:
    """(num_classes,) True where a class may be reported. Raises UsageError for an index that the model has not."""
    if class_filter is None:
        return np.ones(num_classes, dtype=np.bool_)
    unknown = sorted(index for index in class_filter if not 0 <= index < num_classes)
    if unknown:
        raise UsageError(
            f"The class filter names {unknown}, but the model has {num_classes} classes.",
            hint=f"Use class indices from 0 to {num_classes - 1}.",
        )
    mask = np.zeros(num_classes, dtype=np.bool_)
    mask[list(class_filter)] = True
    return mask
