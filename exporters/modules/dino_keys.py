"""What the DINO families share: one naming, facts read from shapes, input sizes and normalized-token outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from vtk.errors import CheckpointError, UsageError
from vtk.exporters.checkpoint import Checkpoint
from vtk.exporters.family import Choice, FamilyOptions, OutputSpec

TOKEN_ATOL = 1e-4  # normalized tokens are near 1; released S models differ by 4e-5 between CPU backends
FP32_ISLANDS = ("layer_norm", "attention_scores", "softmax", "rope")


class VitShapes(TypedDict):
    """The fields of `ViTConfig` that shapes alone decide."""

    dim: int
    depth: int
    ffn: Literal["mlp", "swiglu"]
    ffn_dim: int
    patch: int
    registers: int
    qkv_bias: bool


def on_meta(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same names and shapes without data: renaming and merging cost nothing."""
    return {key: value.to("meta") for key, value in tensors.items()}


def axis(tensors: Mapping[str, Tensor], name: str, index: int) -> int:
    """Length of one axis of one tensor. Raises CheckpointError when there is no such tensor or axis, or it is empty."""
    shape = tensors[name].shape if name in tensors else ()
    if not -len(shape) <= index < len(shape) or shape[index] == 0:
        came = f"has shape {tuple(shape)}" if name in tensors else "is missing"
        raise CheckpointError(f"The tensor {name} {came}; the model cannot be inferred.")
    return int(shape[index])


def merge_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`*.attn.{q,k,v}.{weight,bias}` become `*.attn.qkv.*`; a missing key bias is zero (softmax cancels it).

    Raises CheckpointError when a query has no key or value of its own shape beside it.
    """
    merged = dict(tensors)
    for name, query in tensors.items():
        if match := re.search(r"\.attn\.q\.(weight|bias)$", name):
            stem, kind = name[: match.start()] + ".attn.", match.group(1)
            zeros = torch.zeros_like(query) if kind == "bias" else None
            key, value = tensors.get(f"{stem}k.{kind}", zeros), tensors.get(f"{stem}v.{kind}")
            if key is None or value is None or not key.shape == value.shape == query.shape:
                raise CheckpointError(f"The projection {name} has no key and value of its shape beside it.")
            for letter in "qkv":
                merged.pop(f"{stem}{letter}.{kind}", None)
            merged[f"{stem}qkv.{kind}"] = torch.cat([query, key, value])
    return merged


def apply_bias_masks(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Official files store a key bias that a mask of zeros silences: multiply, and drop the masks.

    Raises CheckpointError for a mask that is not finite or has no bias of its shape beside it.
    """
    masked = {key: value for key, value in tensors.items() if not key.endswith(".bias_mask")}
    for key in tensors.keys() - masked.keys():
        mask, bias = tensors[key], tensors.get(key.removesuffix("_mask"))
        if bias is None or bias.shape != mask.shape or not mask.isfinite().all():
            raise CheckpointError(f"{source}: {key} must be finite, beside a bias of its shape.")
        masked[key.removesuffix("_mask")] = bias * mask
    return masked


def vit_shapes(tensors: Mapping[str, Tensor]) -> VitShapes:
    """Read the architecture off tensors under official names. Raises CheckpointError where they do not tell."""
    swiglu = "blocks.0.mlp.w1.weight" in tensors
    return VitShapes(
        dim=axis(tensors, "cls_token", -1),
        depth=count_blocks(tensors, r"blocks\.(\d+)\."),
        ffn="swiglu" if swiglu else "mlp",
        ffn_dim=axis(tensors, f"blocks.0.mlp.{'w1' if swiglu else 'fc1'}.weight", 0),
        patch=axis(tensors, "patch_embed.proj.weight", -1),
        registers=axis(tensors, "storage_tokens", 1) if "storage_tokens" in tensors else 0,
        qkv_bias="blocks.0.attn.qkv.bias" in tensors,
    )


def count_blocks(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """How many different numbers `pattern` captures; raises CheckpointError unless they are 0, 1, 2, …"""
    numbers = {int(match.group(1)) for key in tensors if (match := re.match(pattern, key))}
    if not numbers or max(numbers) >= len(numbers):
        found = ", ".join(str(number) for number in sorted(numbers)) or "none"
        raise CheckpointError(f"Blocks are missing: the checkpoint holds the numbers {found} of {pattern}.")
    return len(numbers)


def head_count(checkpoint: Checkpoint, dim: int, known: int | None) -> tuple[int, tuple[Choice, ...]]:
    """Attention heads where no tensor tells: the model folder's config.json, a released variant, or 64 wide heads.

    The last is an assumption and comes back as a Choice. Raises CheckpointError when the width does not divide.
    """
    stated = int(config_number(checkpoint, "num_attention_heads", 0))
    heads = stated or known or dim // 64
    if heads < 1 or dim % heads:
        raise CheckpointError(
            f"{checkpoint.path.name}: width {dim} cannot be split into {heads} attention heads.",
            hint="Keep the model's config.json beside the weights: it names num_attention_heads.",
        )
    if stated or known:
        return heads, ()
    reason = "no tensor tells the head count of a custom model; heads are 64 wide in all released ones but the 7B"
    choice = Choice("attention heads", str(heads), "config.json beside the weights", (), reason, assumed=True)
    return heads, (choice,)


def hf_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The `config.json` that travelled with a Hugging Face checkpoint, or nothing."""
    config = checkpoint.metadata.get("config")
    return config if isinstance(config, Mapping) else {}


def config_number(checkpoint: Checkpoint, key: str, default: float) -> float:
    """A number out of config.json. Raises CheckpointError if something else stands there."""
    value = hf_config(checkpoint).get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise CheckpointError(f"{checkpoint.path.name}: {key} is {value!r} in config.json; expected a number.")
    return value


def activation_name(value: object, *, source: str) -> Literal["gelu", "silu"]:
    """Raises CheckpointError for an activation that these models never had."""
    if value == "gelu":
        return "gelu"
    if value in ("silu", "swish"):
        return "silu"
    raise CheckpointError(f"{source}: hidden_act is {value!r} in config.json; expected gelu or silu.")


def input_size(options: FamilyOptions, default: int, multiple: int) -> tuple[int, int]:
    """The asked or default input size. Raises UsageError, naming the nearest sizes, if it is no multiple."""
    size = options.size_hw or (default, default)
    if all(side >= multiple and side % multiple == 0 for side in size):
        return size
    below = [max(side // multiple, 1) * multiple for side in size]
    above = [-(-max(side, 1) // multiple) * multiple for side in size]
    nearest = " or ".join(dict.fromkeys(f"{height},{width}" for height, width in (below, above)))
    raise UsageError(
        f"Input size {size[0]}x{size[1]} (height x width) is not a multiple of {multiple} on both sides.",
        hint=f"Nearest: --size {nearest}.",
    )


def token_outputs(registers: int, depth: int) -> tuple[OutputSpec, ...]:
    """cls, registers where the model has them, patches. Rounding errors add up, so the limit grows beyond 12 blocks."""
    atol = TOKEN_ATOL * max(1.0, depth / 12)
    names = ("cls", "registers", "patches") if registers else ("cls", "patches")
    return tuple(OutputSpec(name, "embedding" if name == "cls" else "tokens", atol) for name in names)
