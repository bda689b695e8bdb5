"""One check of what is fed to an engine, so that every runtime refuses the same inputs with the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vtk.engines.base import Array, TensorSpec
from vtk.errors import BackendError


def check_feeds(feeds: Mapping[str, Array], specs: Sequence[TensorSpec]) -> None:
    """Raise BackendError unless the feeds have exactly the names, shapes and dtypes of `specs`."""
    expected = {spec.name for spec in specs}
    if feeds.keys() != expected:
        raise BackendError(f"The engine expects the inputs {sorted(expected)}, got {sorted(feeds)}.")
    for spec in specs:
        array = feeds[spec.name]
        if array.shape != spec.shape or array.dtype.name != spec.dtype:
            raise BackendError(
                f"Input '{spec.name}' must be {spec.dtype} {spec.shape}, got {array.dtype.name} {array.shape}."
            )


def static_shape(name: str, dims: Sequence[object]) -> tuple[int, ...]:
    """The shape as integers. Raises BackendError for a symbolic or unknown dimension."""
    if not all(isinstance(dim, int) and dim >= 0 for dim in dims):
        raise BackendError(
            f"'{name}' has the shape {list(dims)}; only graphs with a static shape run here.",
            hint="Export the checkpoint again with fixed --batch and --size.",
        )
    return tuple(int(str(dim)) for dim in dims)
