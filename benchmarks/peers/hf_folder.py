"""The same weights as a Hugging Face folder in float32, for peers that do not read GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from vtk.llm_serving.loading.source import load_model_source


def write_hf_folder(model: Path, folder: Path) -> None:
    """config.json and model.safetensors of a Llama out of any model that vtk reads; no tokenizer."""
    source = load_model_source(model)
    config = source.info.config
    weights = source.weights.dequantized()
    tensors = {name: weight.data for name, weight in weights.matrices.items()} | dict(weights.vectors)
    names = {name: name if name.startswith("lm_head") else f"model.{name}" for name in tensors}
    contiguous = {names[name]: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_id,
        "eos_token_id": min(config.eos_ids, default=None),
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(described))
