"""Typed look-ups in what a file says of a model, each with one clear error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vtk.errors import CheckpointError

MAX_LAYERS = 1 << 12
_FLOAT32 = np.finfo(np.float32)


@dataclass(frozen=True)
class Metadata:
    """Values of a file called `source`, looked up below `prefix`. A missing key without a default is an error."""

    values: Mapping[str, Any]
    source: str
    prefix: str = ""

    def under(self, name: str) -> Metadata:
        """The same values with every key below `name.`."""
        return Metadata(self.values, self.source, f"{self.prefix}{name}.")

    def get(self, key: str) -> Any:
        """The value as it is; None where there is none."""
        return self.values.get(self.prefix + key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "an integer", value)
        return value

    def at_most(self, most: int, key: str, default: int | None = None) -> int:
        """An integer that decides how much is made before it can be compared with anything."""
        value = self.integer(key, default)
        if value > most:
            raise self._wrong(key, f"at most {most}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number that does not become zero in float32, which models compute in."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_float32(value):
            raise self._wrong(key, "a number within float32", value)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text", value)
        return value

    def texts(self, key: str) -> list[str]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts", value)
        return value

    def numbers(self, key: str) -> list[float]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(type(item) in (int, float) for item in value):
            raise self._wrong(key, "a list of numbers", value)
        return [float(item) for item in value]

    def integers(self, key: str) -> list[int]:
        value = self._value(key, None)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(key, "a list of integers", value)
        return value

    def token_ids(self, key: str, vocab_size: int) -> frozenset[int]:
        """One id, a list of them, or none where the file is silent."""
        value = self.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item < vocab_size for item in ids):
            raise self._wrong(key, f"a token id from 0 to {vocab_size - 1}, or a list of them", value)
        return frozenset(ids)

    def require(self, key: str, wanted: Any) -> None:
        """Raise where the file states another value than the only one that vtk serves."""
        value = self.get(key)
        if value is not None and value != wanted:
            stated = f"{self.prefix}{key} = {str(value)[:60]}"
            raise CheckpointError(f"{self.source} says {stated}; vtk serves such a model only with {wanted}.")

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{self.source} does not say '{self.prefix}{key}', which its model needs.")
        return default if value is None else value

    def _wrong(self, key: str, wanted: str, value: Any) -> CheckpointError:
        return CheckpointError(f"{self.source}: '{self.prefix}{key}' should be {wanted}, not {str(value)[:60]!r}.")


def _is_float32(value: float) -> bool:
    return value == 0 or float(_FLOAT32.smallest_subnormal) <= abs(value) <= float(_FLOAT32.max)
