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


def merge_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`*.attn.{q,k,v}.{weight,bias}` become `*.attn.qkv.*`; a missing key bias is zero (softmax cancels it).

    Raises CheckpointError when a query has no key or value beside it.
    """
    merged = {key: value for key, value in tensors.items() if not re.search(r"\.attn\.[qkv]\.(weight|bias)$", key)}
    for key, query in tensors.items():
        if match := re.search(r"\.attn\.q\.(weight|bias)$", key):
            stem, kind = key[: match.start()] + ".attn.", match.group(1)
            parts = [query, tensors.get(f"{stem}k.{kind}"), tensors.get(f"{stem}v.{kind}")]
            if kind == "bias" and parts[1] is None:
                parts[1] = torch.zeros_like(query)
            if any(part is None for part in parts):
                raise CheckpointError(f"{key} has no key or value projection beside it in the checkpoint.")
            merged[f"{stem}qkv.{kind}"] = torch.cat([part for part in parts if part is not None])
    return merged


def vit_shapes(tensors: Mapping[str, Tensor]) -> VitShapes:
    """Read the architecture off tensors under official names. Raises CheckpointError when one is missing."""
    try:
        swiglu = "blocks.0.mlp.w1.weight" in tensors
        return VitShapes(
            dim=tensors["cls_token"].shape[-1],
            depth=count_blocks(tensors, r"blocks\.(\d+)\."),
            ffn="swiglu" if swiglu else "mlp",
            ffn_dim=tensors[f"blocks.0.mlp.{'w1' if swiglu else 'fc1'}.weight"].shape[0],
            patch=tensors["patch_embed.proj.weight"].shape[-1],
            registers=tensors["storage_tokens"].shape[1] if "storage_tokens" in tensors else 0,
            qkv_bias="blocks.0.attn.qkv.bias" in tensors,
        )
    except KeyError as error:
        raise CheckpointError(f"The tensor {error} is missing from the checkpoint.") from error


def count_blocks(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the highest number that `pattern` captures."""
    return 1 + max((int(match.group(1)) for key in tensors if (match := re.match(pattern, key))), default=-1)


def head_count(checkpoint: Checkpoint, dim: int, known: int | None) -> tuple[int, tuple[Choice, ...]]:
    """Attention heads where no tensor tells: the model folder's config.json, a released variant, or 64 wide heads.

    The last is an assumption and comes back as a Choice. Raises CheckpointError when the width does not divide.
    """
    stated = hf_config(checkpoint).get("num_attention_heads")
    heads = int(stated or known or dim // 64)
    if heads < 1 or dim % heads:
        raise CheckpointError(
            f"{checkpoint.path.name}: width {dim} cannot be split into attention heads.",
            hint="Keep the model's config.json beside the weights: it names num_attention_heads.",
        )
    if stated or known:
        return heads, ()
    reason = f"no tensor tells the head count of a custom {dim} wide model; every released one has heads of 64"
    choice = Choice("attention heads", str(heads), "config.json beside the weights", (), reason, assumed=True)
    return heads, (choice,)


def hf_config(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The `config.json` that travelled with a Hugging Face checkpoint, or nothing."""
    config = checkpoint.metadata.get("config")
    return config if isinstance(config, Mapping) else {}


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
