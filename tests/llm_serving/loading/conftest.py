"""A tiny Llama in both file formats, made by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN, FFN, HEADS, KV_HEADS, VOCAB = 64, 96, 4, 2, 259
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "eos_token_id": 258,
    "bos_token_id": 257, "tie_word_embeddings": False,
}  # fmt: skip
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Hi"]
TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% endfor %}"
SHAPES = {
    "model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN),
    "model.layers.0.input_layernorm.weight": (HIDDEN,), "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN), "model.layers.0.self_attn.k_proj.weight": (32, HIDDEN),
    "model.layers.0.self_attn.v_proj.weight": (32, HIDDEN), "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "model.layers.0.mlp.gate_proj.weight": (FFN, HIDDEN), "model.layers.0.mlp.up_proj.weight": (FFN, HIDDEN),
    "model.layers.0.mlp.down_proj.weight": (HIDDEN, FFN),
}  # fmt: skip


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(TOKENS)}, [("H", "i")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The row order of llama.cpp's conversion: a head's halves are dealt alternately."""
    rows = weight.shape[0] // heads
    order = [head * rows + half * (rows // 2) + i for head in range(heads) for i in range(rows // 2) for half in (0, 1)]
    return weight[order]


@pytest.fixture
def write_gguf(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Callable[..., Path]:
    """Writes the model as ggml's package does; `skip` and `extra` change its metadata, `quantize` its matrices."""

    def write(quantize: str | None = None, skip: tuple[str, ...] = (), **extra: Any) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, extra.pop("architecture", "llama"))
        values: dict[str, Any] = {
            "llama.embedding_length": HIDDEN, "llama.feed_forward_length": FFN, "llama.block_count": 1,
            "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
            "llama.context_length": 128, "tokenizer.ggml.bos_token_id": 257, "tokenizer.ggml.eos_token_id": 258,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 5000.0,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.chat_template": TEMPLATE,
            "tokenizer.ggml.tokens": [*TOKENS, "<s>", "</s>"], "tokenizer.ggml.token_type": [1] * 257 + [3, 3],
            "tokenizer.ggml.merges": ["H i"],
        }  # fmt: skip
        values |= {key.replace("__", "."): value for key, value in extra.items()}
        for key, value in values.items():
            if key not in skip:
                _add(writer, key, value)
        for name, weight in tensors.items():
            _add_tensor(writer, name, weight, quantize)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        value_type, item_type = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.STRING
        if isinstance(value[0], int):
            item_type = gguf.GGUFValueType.INT32
        writer.add_key_value(key, value, value_type, sub_type=item_type)
        return
    kinds = {str: "STRING", bool: "BOOL", int: "UINT32", float: "FLOAT32"}
    writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])


_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def _add_tensor(writer: gguf.GGUFWriter, name: str, weight: torch.Tensor, quantize: str | None) -> None:
    short = name.removesuffix(".weight").removeprefix("model.layers.0.")
    own = _NAMES.get(short, short)
    stored = f"blk.0.{own}.weight" if short != name.removesuffix(".weight") else f"{own}.weight"
    if short in ("self_attn.q_proj", "self_attn.k_proj"):
        weight = interleaved(weight, HEADS if "q_proj" in short else KV_HEADS)
    data: np.ndarray[Any, Any] = weight.numpy()
    if quantize is None or weight.dim() == 1:
        writer.add_tensor(stored, data)
        return
    kind = gguf.GGMLQuantizationType[quantize]
    writer.add_tensor(stored, gguf.quants.quantize(data, kind), raw_dtype=kind)
