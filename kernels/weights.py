"""A weight matrix as its file stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.kernels.quant_formats import BLOCK_FORMATS

# How each is held in memory. NumPy has no bfloat16: its 16 bits are those of the upper half of a float32.
FLOAT_FORMATS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
}


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """An (N, K) matrix, output rows first, in one of the formats f32, f16, bf16, int8, q8_0, q4_0, q4_1, q4_k, q6_k.

    data: (N, K) of the float type, bf16 as uint16 bits; (N, K) int8 with `scales` (N,) float32; or (N, bytes of a row)
    uint8, the GGUF blocks of each row as they are in the file. Rows of matrices of one format and K may be joined with
    `np.concatenate`. K is a multiple of the format's block (32, or 256 for q4_k and q6_k); float and int8 rows have any
    K.
    """

    format: str
    data: npt.NDArray[Any]
    scales: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.data.ndim != 2 or self.data.dtype != self._storage_dtype() or not self.data.flags.c_contiguous:
            raise ValueError(
                f"a {self.format} weight is a contiguous matrix of {self._storage_dtype()}; "
                f"got {self.data.shape} {self.data.dtype}"
            )
        block = BLOCK_FORMATS.get(self.format)
        if block and self.data.shape[1] % block.block_bytes:
            raise ValueError(f"{self.data.shape[1]} bytes a row are no whole {self.format} blocks")
        if (self.format == "int8") != (self.scales is not None):
            raise ValueError("int8 rows, and only they, come with one scale a row")
        if self.scales is not None and (self.scales.shape != self.data.shape[:1] or self.scales.dtype != np.float32):
            raise ValueError(f"expected {self.data.shape[0]} float32 scales; got {self.scales.shape}")

    def _storage_dtype(self) -> np.dtype[Any]:
        if self.format in BLOCK_FORMATS:
            return np.dtype(np.uint8)
        if self.format == "int8":
            return np.dtype(np.int8)
        if self.format not in FLOAT_FORMATS:
            known = ", ".join((*FLOAT_FORMATS, "int8", *BLOCK_FORMATS))
            raise ValueError(f"unknown weight format {self.format!r}; known: {known}")
        return FLOAT_FORMATS[self.format]

    @property
    def out_features(self) -> int:
        """N."""
        return int(self.data.shape[0])

    @property
    def in_features(self) -> int:
        """K."""
        block = BLOCK_FORMATS.get(self.format)
        columns = int(self.data.shape[1])
        return columns // block.block_bytes * block.block_values if block else columns

    def dequantize(self, rows: npt.NDArray[np.int64] | slice = slice(None)) -> npt.NDArray[np.float32]:
        """The float32 values of all or some rows: (n, K). All rows of an f32 weight are its own memory."""
        data = self.data[rows]
        block = BLOCK_FORMATS.get(self.format)
        with np.errstate(invalid="ignore", over="ignore"):  # what a file says may be infinite or no number
            if block:
                return block.decode(data.reshape(-1, block.block_bytes)).reshape(data.shape[0], self.in_features)
            values = to_float32(data, self.format)
            return values if self.scales is None else values * self.scales[rows][:, None]


def to_float32(data: npt.NDArray[Any], format_name: str) -> npt.NDArray[np.float32]:
    """The values of numbers that are stored as f32, f16, bf16 or int8; float32 itself is not copied."""
    if format_name == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float32, copy=False)
