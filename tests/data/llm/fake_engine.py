"""An engine over a fake device, for every test that needs one: `from fake_engine import …`."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from vtk.llm_serving.core.config import SchedulerConfig
from vtk.llm_serving.core.step_inputs import StepInputs
from vtk.llm_serving.engine import Generation, LLMEngine, Vocabulary
from vtk.llm_serving.sampling.params import SamplingParams

VOCAB = 128  # token i is the character i; 0 ends the output
PROMPT = [ord(c) for c in "the quick brown fox"]


def row_for(tokens: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The fake model: logits that depend on every token before, printable tokens far likelier than others."""
    row = np.random.default_rng(abs(hash(tuple(tokens)))).normal(0, 2, VOCAB).astype(np.float32)
    row[:32] -= 50
    row[127] -= 50
    return row


class FakeRunner:
    """KV slots that hold the tokens themselves."""

    backend = device = "fake"
    vocab_size = VOCAB
    hidden_size = 2

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.before_step: Callable[[], None] = lambda: None
        self._slots = np.full(num_blocks * block_size, -1, np.int64)

    def forward(
        self, inputs: StepInputs, hidden: np.ndarray[Any, np.dtype[np.float32]] | None = None
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The hidden state of a token is itself and its position."""
        self.before_step()
        if hidden is not None:
            hidden[:] = np.stack([inputs.token_ids, inputs.positions], axis=1)
        size, attention = self.block_size, inputs.attention
        for source, target in inputs.copies:
            self._slots[target * size : (target + 1) * size] = self._slots[source * size : (source + 1) * size]
        self._slots[attention.slot_mapping] = inputs.token_ids
        rows = []
        for wanted in inputs.logits_rows:
            i = int(np.searchsorted(attention.cu_seqlens, wanted, side="right")) - 1
            past = np.arange(inputs.positions[wanted] + 1)
            rows.append(row_for(self._slots[attention.block_tables[i][past // size] * size + past % size].tolist()))
        return np.array(rows, np.float32).reshape(-1, VOCAB)

    def close(self) -> None:
        pass


def make(num_blocks: int = 64, before_step: Callable[[], None] = lambda: None, **config: Any) -> LLMEngine:
    settings = {"max_model_len": 200, "max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": 4} | config
    caching = settings.pop("caching", True)
    vocabulary = Vocabulary(lambda token: bytes([token]), frozenset({0}), frozenset({0}))
    runner = FakeRunner(num_blocks, settings["block_size"])
    runner.before_step = before_step
    return LLMEngine(runner, vocabulary, SchedulerConfig(**settings), enable_prefix_caching=caching)


def greedy(prompt: list[int], count: int) -> str:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(row_for(tokens).argmax()))
    return "".join(map(chr, tokens[len(prompt) :]))


def request(name: str = "a", prompt: list[int] = PROMPT, **params: Any) -> Generation:
    return Generation(name, prompt, SamplingParams(**({"temperature": 0.0, "max_tokens": 12} | params)))


class FakeTokenizer:
    """Characters below 128 are their own ids. A conversation is its contents, one a line."""

    eos_ids = special_ids = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        names = "".join(f"{tool['function']['name']}\n" for tool in tools or ())
        return self.encode(names + "".join(f"{message['content']}\n" for message in messages))

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


def loaded(**settings: Any) -> SimpleNamespace:
    """What load_engine gives, over the fake device."""
    engine = make(**settings)
    return SimpleNamespace(
        engine=engine, tokenizer=FakeTokenizer(), runner=engine._runner, max_model_len=engine._config.max_model_len
    )
