"""The words of precision that the command line and a bundle use; imports nothing, so that both stay light."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "mixed", "int8", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
QUANTIZED: tuple[Precision, ...] = ("int8", "fp8")

# Beside `model.b1.onnx` in half precision lies `model.b1.rounded.onnx`, its float32 twin: see `precision_round`.
ROUNDED_SUFFIX = ".rounded.onnx"
