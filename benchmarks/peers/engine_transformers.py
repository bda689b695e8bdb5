"""transformers in float32, eager, with its key-value cache; it has no server loop to compare."""

from __future__ import annotations

import torch
import transformers


class TransformersPeer:
    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self._model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.name = f"transformers {transformers.__version__} float32"

    def prefill(self, prompt: list[int]) -> None:
        self._forward(torch.tensor([prompt]), transformers.DynamicCache())

    def start(self, prompts: list[list[int]]) -> None:
        self._cache = transformers.DynamicCache()
        self._last = self._forward(torch.tensor(prompts), self._cache)

    def decode(self, steps: int) -> None:
        for _ in range(steps):
            self._last = self._forward(self._last, self._cache)

    def keep(self, count: int) -> None:
        self._last = self._last[:count]
        self._cache.batch_select_indices(torch.arange(count))

    def first_tokens(self, prompts: list[list[int]], max_tokens: int) -> None:
        return None

    @torch.inference_mode()
    def _forward(self, tokens: torch.Tensor, cache: transformers.DynamicCache) -> torch.Tensor:
        output = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return output.logits[:, -1].argmax(-1, keepdim=True)


def make(model: str, folder: str) -> TransformersPeer:
    return TransformersPeer(folder)
