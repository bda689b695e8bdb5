"""A Hugging Face folder as a model: config.json, generation_config.json and safetensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from vtk.errors import CheckpointError
from vtk.exporters.checkpoint_json import read_json
from vtk.exporters.checkpoint_stored import StoredCheckpoint
from vtk.kernels.weights import StoredWeight, to_float32
from vtk.llm_serving.loading.metadata import MAX_LAYERS, Metadata
from vtk.llm_serving.models.config import MAX_DIMENSION, ModelConfig, find_architecture
from vtk.llm_serving.models.rope import llama3_factors
from vtk.llm_serving.models.weights import ModelWeights

_FORMATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def hf_config(folder: Path) -> ModelConfig:
    """The configuration of a folder. CheckpointError for what vtk does not serve."""
    values = Metadata(read_json(folder / "config.json"), "config.json")
    classes = values.get("architectures")
    named = classes[0] if isinstance(classes, list) and classes else values.get("model_type")
    architecture = find_architecture(str(named), "config.json")
    values.require("hidden_act", "silu")
    values.require("mlp_bias", False)
    values.require("use_sliding_window", False)
    values.require("quantization_config", None)
    hidden, heads = values.integer("hidden_size"), values.integer("num_attention_heads")
    head_dim = values.at_most(MAX_DIMENSION, "head_dim", hidden // max(heads, 1))
    vocab_size = values.integer("vocab_size")
    theta, factors = _rope(values, head_dim)
    attention_bias = values.boolean("attention_bias", False)
    return ModelConfig(
        architecture=architecture.name,
        hidden_size=hidden,
        intermediate_size=values.integer("intermediate_size"),
        num_layers=values.at_most(MAX_LAYERS, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=values.integer("num_key_value_heads", heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_positions=values.integer("max_position_embeddings"),
        rms_norm_eps=values.number("rms_norm_eps"),
        rope_theta=theta,
        rope_factors=factors,
        tie_embeddings=values.boolean("tie_word_embeddings", False),
        qkv_bias=architecture.qkv_bias or attention_bias,
        output_bias=attention_bias,
        qk_norm=architecture.qk_norm,
        bos_id=min(values.token_ids("bos_token_id", vocab_size), default=None),
        eos_ids=_eos_ids(folder, values, vocab_size),
    )


def hf_weights(checkpoint: StoredCheckpoint, config: ModelConfig) -> ModelWeights:
    """The tensors under the model's own names, in the precision of the file."""
    matrices: dict[str, StoredWeight] = {}
    vectors: dict[str, npt.NDArray[np.float32]] = {}
    for stored_name, tensor in checkpoint.tensors.items():
        name = stored_name.removeprefix("model.")
        if name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_embeddings):
            continue
        if tensor.dtype not in _FORMATS:
            raise CheckpointError(
                f"{checkpoint.path.name}: tensor {stored_name} is torch.{tensor.dtype}.",
                hint="vtk serves float32, float16 and bfloat16 safetensors, and quantized GGUF files.",
            )
        if name in matrices or name in vectors:
            raise CheckpointError(f"{checkpoint.path.name}: two tensors are both {name}, with and without 'model.'.")
        format_name = _FORMATS[tensor.dtype]
        if tensor.data.ndim == 2:
            matrices[name] = StoredWeight(format_name, tensor.data)
        else:
            vectors[name] = to_float32(tensor.data, format_name).copy()
    return ModelWeights(matrices, vectors, checkpoint.forget_pages)


def _rope(values: Metadata, head_dim: int) -> tuple[float, tuple[float, ...]]:
    """Base and frequency divisors, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    stated = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(stated, dict) or any(isinstance(value, dict) for value in stated.values()):
        raise CheckpointError(f"config.json: the RoPE scaling should be an object of values, not {str(stated)[:60]}.")
    rope = Metadata(stated, "config.json: RoPE")
    theta = rope.number("rope_theta", values.number("rope_theta", 10000.0))
    kind = stated.get("rope_type", stated.get("type", "default"))
    if kind == "default":
        return theta, ()
    if kind == "linear":
        return theta, (rope.number("factor"),) * (head_dim // 2)
    if kind == "llama3":
        return theta, _llama3(rope, theta, head_dim)
    raise CheckpointError(f"config.json scales RoPE by '{kind}'.", hint="vtk serves default, linear and llama3.")


def _llama3(rope: Metadata, theta: float, head_dim: int) -> tuple[float, ...]:
    factor, low, high = (rope.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = rope.at_most(MAX_DIMENSION, "original_max_position_embeddings")
    if not (theta > 0 and factor > 0 and 0 < low < high and original > 0):
        raise CheckpointError(
            f"{rope.source} of the type llama3 needs numbers above 0 and low_freq_factor below high_freq_factor; got "
            f"rope_theta {theta}, factor {factor}, {low} and {high}, original_max_position_embeddings {original}."
        )
    return llama3_factors(theta, head_dim, factor=factor, low_freq_factor=low, high_freq_factor=high, original=original)


def _eos_ids(folder: Path, values: Metadata, vocab_size: int) -> frozenset[int]:
    """What ends an output: generation_config.json says it, config.json where that is silent."""
    path = folder / "generation_config.json"
    generation = Metadata(read_json(path) if path.is_file() else {}, path.name)
    return generation.token_ids("eos_token_id", vocab_size) or values.token_ids("eos_token_id", vocab_size)
