"""A GGUF file as a model: configuration from its metadata, weights under the model's own names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_gguf import GgufFile, GgufTensor
from vtk.kernels.weights import StoredWeight, to_float32
from vtk.llm_serving.loading.metadata import MAX_LAYERS, Metadata
from vtk.llm_serving.models.config import MAX_DIMENSION, ModelConfig, find_architecture
from vtk.llm_serving.models.weights import ModelWeights

ROPE_FACTORS = "rope_freqs.weight"
_TOP = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration that a GGUF file states. CheckpointError for what vtk does not serve."""
    values = Metadata(file.metadata, file.path.name)
    architecture = find_architecture(values.text("general.architecture"), file.path.name)
    own = values.under(architecture.name)
    heads = own.integer("attention.head_count")
    hidden = own.integer("embedding_length")
    head_dim = own.at_most(MAX_DIMENSION, "attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        own.require(key, head_dim)
    own.require("attention.sliding_window", 0)
    if "token_embd.weight" not in file.tensors:
        raise CheckpointError(f"{file.path.name} has no tensor token_embd.weight, so it is no language model.")
    vocab_size = file.tensors["token_embd.weight"].shape[0]
    bos, eos, eot = (values.token_ids(f"tokenizer.ggml.{key}_token_id", vocab_size) for key in ("bos", "eos", "eot"))
    return ModelConfig(
        architecture=architecture.name,
        hidden_size=hidden,
        intermediate_size=own.integer("feed_forward_length"),
        num_layers=own.at_most(MAX_LAYERS, "block_count"),
        num_heads=heads,
        num_kv_heads=own.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=own.integer("context_length"),
        rms_norm_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=own.number("rope.freq_base", 10000.0),
        rope_factors=_rope_factors(own, file.tensors, head_dim),
        tie_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=architecture.qk_norm,
        bos_id=min(bos, default=None),
        eos_ids=eos | eot,
    )


def gguf_weights(file: GgufFile, config: ModelConfig) -> ModelWeights:
    """The tensors under the model's own names; quantized blocks are the file's, unchanged."""
    architecture = find_architecture(config.architecture, file.path.name)
    matrices: dict[str, StoredWeight] = {}
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    for stored_name, tensor in file.tensors.items():
        if stored_name == ROPE_FACTORS:
            continue
        name = _name(stored_name)
        data = _deinterleaved(tensor.data, name, config) if architecture.gguf_interleaves_qk else tensor.data
        if len(tensor.shape) == 2:
            matrices[name] = StoredWeight(tensor.type.lower(), data)
        elif tensor.is_plain:
            vectors[name] = to_float32(data, tensor.type.lower()).copy()
        else:
            raise CheckpointError(f"{file.path.name}: tensor {stored_name} is {tensor.type} and no matrix.")
    return ModelWeights(matrices, vectors, file.forget_pages)


def _name(stored: str) -> str:
    match = _BLOCK_NAME.fullmatch(stored)
    if match is not None and match[2] in _LAYER:
        return f"layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"
    return _TOP.get(stored, f"'{stored}'")  # in quotes it is none of the model's own names


def _deinterleaved(data: npt.NDArray[Any], name: str, config: ModelConfig) -> npt.NDArray[Any]:
    """Rows of q and k in rotate-half order; whole rows move, so that blocks stay as they are.

    GGUF holds row 2i + h of a head where rotate-half has row h * head_dim / 2 + i (llama.cpp's conversion of Llama).
    """
    if re.search(r"self_attn\.[qk]_proj\.", name) is None or data.shape[0] % config.head_dim:
        return data
    pairs = data.reshape(-1, config.head_dim // 2, 2, *data.shape[1:])
    ordered: npt.NDArray[Any] = pairs.swapaxes(1, 2).reshape(data.shape)
    return ordered


def _rope_factors(own: Metadata, tensors: Mapping[str, GgufTensor], head_dim: int) -> tuple[float, ...]:
    if ROPE_FACTORS in tensors:
        factors = tensors[ROPE_FACTORS]
        return tuple(to_float32(factors.data, factors.type.lower()).ravel().tolist())
    # As llama.cpp reads it: a factor alone is linear, and older files call it otherwise.
    factor_key = "rope.scale_linear" if own.get("rope.scaling.factor") is None else "rope.scaling.factor"
    kind = own.text("rope.scaling.type", "none" if own.get(factor_key) is None else "linear")
    if kind == "none":
        return ()
    if kind != "linear":
        raise CheckpointError(f"{own.source} scales RoPE by '{kind}'.", hint="vtk serves none, linear and llama3.")
    return (own.number(factor_key),) * (head_dim // 2)
