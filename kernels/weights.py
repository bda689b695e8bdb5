"""A weight matrix as its file stores it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vtk.kernels.quant_formats import BLOCK_FORMATS

FLOAT_FORMATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """An (N, K) matrix, output rows first, in one of the formats f32, f16, bf16, int8, q8_0, q4_0, q4_1, q4_k, q6_k.

    data: (N, K) of the float type; (N, K) int8 with `scales` (N,) float32; or (N, bytes of a row) uint8, the GGUF
    blocks of each row as they are in the file. Rows of matrices of one format and K may be joined with `torch.cat`.
    K is a multiple of the format's block (32, or 256 for q4_k and q6_k); float and int8 rows have any K.
    """

    format: str
    data: torch.Tensor
    scales: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if self.data.dim() != 2 or self.data.dtype != self._storage_dtype() or not self.data.is_contiguous():
            raise ValueError(
                f"a {self.format} weight is a contiguous matrix of {self._storage_dtype()}; "
                f"got {tuple(self.data.shape)} {self.data.dtype}"
            )
        block = BLOCK_FORMATS.get(self.format)
        if block and self.data.shape[1] % block.block_bytes:
            raise ValueError(f"{self.data.shape[1]} bytes a row are no whole {self.format} blocks")
        if (self.format == "int8") != (self.scales is not None):
            raise ValueError("int8 rows, and only they, come with one scale a row")
        if self.scales is not None and (self.scales.shape, self.scales.dtype) != (self.data.shape[:1], torch.float32):
            raise ValueError(f"expected {self.data.shape[0]} float32 scales; got {tuple(self.scales.shape)}")

    def _storage_dtype(self) -> torch.dtype:
        if self.format in BLOCK_FORMATS:
            return torch.uint8
        if self.format == "int8":
            return torch.int8
        if self.format not in FLOAT_FORMATS:
            known = ", ".join((*FLOAT_FORMATS, "int8", *BLOCK_FORMATS))
            raise ValueError(f"unknown weight format {self.format!r}; known: {known}")
        return FLOAT_FORMATS[self.format]

    @property
    def out_features(self) -> int:
        """N."""
        return self.data.shape[0]

    @property
    def in_features(self) -> int:
        """K."""
        block = BLOCK_FORMATS.get(self.format)
        return self.data.shape[1] // block.block_bytes * block.block_values if block else self.data.shape[1]

    def dequantize(self, rows: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """The float32 values of all or some rows: (n, K)."""
        data = self.data[rows]
        block = BLOCK_FORMATS.get(self.format)
        if block:
            return block.decode(data.reshape(-1, block.block_bytes)).reshape(data.shape[0], self.in_features)
        values = data.float()
        return values if self.scales is None else values * self.scales[rows][:, None]
