"""The words of precision that the command line and a bundle use; imports nothing, so that both stay light."""

from __future__ import annotations

from typing import Literal, get_args

Precision = Literal["fp32", "fp16", "bf16", "mixed"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

# Beside `model.b1.onnx` in half precision lies `model.b1.rounded.onnx`, its float32 twin: see `precision_round`.
ROUNDED_SUFFIX = ".rounded.onnx"
