"""Tiny random models of every architecture as Hugging Face folders, with what transformers generates from them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.models.llama import LlamaForCausalLM
from transformers.models.qwen2 import Qwen2ForCausalLM
from transformers.models.qwen3 import Qwen3ForCausalLM

VOCAB = 300
NEW_TOKENS = 20
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama3": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3_ROPE, "attention_bias": True}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"rope_parameters": LINEAR_ROPE}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
}  # fmt: skip


@dataclass(frozen=True)
class TinyModel:
    """A folder, the model in it, prompts, and transformers' greedy continuation of each."""

    folder: Path
    reference: PreTrainedModel
    prompts: list[list[int]]
    outputs: list[list[int]]


def byte_tokenizer() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def greedy(model: PreTrainedModel, prompt: list[int]) -> tuple[list[int], float]:
    """The continuation, and the smallest distance between the two best logits on the way."""
    with torch.no_grad():
        result = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=NEW_TOKENS,
            do_sample=False, output_logits=True, return_dict_in_generate=True, pad_token_id=0,
        )  # fmt: skip
    best = torch.cat(result.logits).topk(2).values
    return result.sequences[0, len(prompt) :].tolist(), float((best[:, 0] - best[:, 1]).min())


@pytest.fixture(scope="package", params=MODELS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    model_class, config_class, settings = MODELS[request.param]
    torch.manual_seed(7)
    model = model_class(config_class(**(SIZES | settings))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.15 if parameter.dim() == 2 else 0.3
            parameter.normal_(1.0 if name.endswith("norm.weight") else 0.0, scale)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 256, length).tolist() for length in (1, 2, 15, 16, 17, 33, 48, 90, 150, 7, 31, 64)]
    prompts[9] = prompts[8][:100] + prompts[9]  # shares blocks with another one
    results = [greedy(model, prompt) for prompt in prompts]
    assert min(margin for _, margin in results) > 2e-4, "a tie: no test of ids can be exact"
    return TinyModel(folder, model, prompts, [output for output, _ in results])
