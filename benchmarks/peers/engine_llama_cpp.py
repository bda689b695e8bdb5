"""llama.cpp by the low-level interface of llama-cpp-python: the file's weights, float16 keys and values."""

from __future__ import annotations

import ctypes
import time

import llama_cpp
import numpy as np

SEQUENCES, MAX_LENGTH, PREFILL_LENGTH, STEP_TOKENS = 32, 512, 4096, 512


@llama_cpp.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Nothing of the library's chatter."""


class LlamaCppPeer:
    """Prompts and batches have a context each, so that neither reads memory that only the other needs."""

    def __init__(self, model: str) -> None:
        llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._prefill = self._context(1, PREFILL_LENGTH)
        self._decode = self._context(SEQUENCES, MAX_LENGTH)
        self._batch = llama_cpp.llama_batch_init(PREFILL_LENGTH, 0, 1)
        self._last: list[int] = []
        self._length = 0
        self.name = f"llama.cpp ({llama_cpp.__version__} of llama-cpp-python), file's weights"

    def prefill(self, prompt: list[int]) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._prefill), False)
        self._run(self._prefill, [(token, position, 0) for position, token in enumerate(prompt)], [len(prompt) - 1])

    def start(self, prompts: list[list[int]]) -> None:
        self._length = len(prompts[0])
        self._last = []
        for sequence, prompt in enumerate(prompts):
            entries = [(token, position, sequence) for position, token in enumerate(prompt)]
            self._last += self._run(self._decode, entries, [len(prompt) - 1])

    def decode(self, steps: int) -> None:
        for _ in range(steps):
            entries = [(token, self._length, sequence) for sequence, token in enumerate(self._last)]
            self._last = self._run(self._decode, entries, range(len(entries)))
            self._length += 1

    def keep(self, count: int) -> None:
        memory = llama_cpp.llama_get_memory(self._decode)
        for sequence in range(count, len(self._last)):
            llama_cpp.llama_memory_seq_rm(memory, sequence, -1, -1)
        del self._last[count:]

    def first_tokens(self, prompts: list[list[int]], max_tokens: int) -> list[tuple[float, float]]:
        """As its server's slots do it: every step decodes one token of each answer, then computes the next prompts."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._decode), False)
        start_cpu, start_wall = time.process_time(), time.perf_counter()
        pending = [(s, p, token) for s, prompt in enumerate(prompts) for p, token in enumerate(prompt)]
        answers: dict[int, tuple[int, int]] = {}  # sequence -> its length, its last token
        first: dict[int, tuple[float, float]] = {}
        while pending:
            live = [
                (token, length, s) for s, (length, token) in answers.items() if length - len(prompts[s]) < max_tokens
            ]
            chunk = pending[: STEP_TOKENS - len(live)]
            del pending[: len(chunk)]
            entries = live + [(token, position, s) for s, position, token in chunk]
            rows = [i for i, (_, position, s) in enumerate(entries) if position >= len(prompts[s]) - 1]
            for row, token in zip(rows, self._run(self._decode, entries, rows), strict=True):
                _, position, s = entries[row]
                answers[s] = (position + 1, token)
                first.setdefault(s, (time.process_time() - start_cpu, time.perf_counter() - start_wall))
        return [first[s] for s in range(len(prompts))]

    def _context(self, sequences: int, length: int) -> llama_cpp.llama_context_p:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * length, sequences
        params.n_batch, params.n_ubatch = PREFILL_LENGTH, 512
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = False
        return llama_cpp.llama_init_from_model(self._model, params)

    def _run(self, context: llama_cpp.llama_context_p, entries: list[tuple[int, int, int]], rows: object) -> list[int]:
        """Compute (token, position, sequence) entries; the most likely tokens after the given rows."""
        batch, wanted = self._batch, set(rows)
        batch.n_tokens = len(entries)
        for index, (token, position, sequence) in enumerate(entries):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = index in wanted
        code = llama_cpp.llama_decode(context, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")
        logits = (llama_cpp.llama_get_logits_ith(context, row) for row in sorted(wanted))
        return [int(np.ctypeslib.as_array(row, (self._vocab_size,)).argmax()) for row in logits]


def make(model: str, folder: str) -> LlamaCppPeer:
    return LlamaCppPeer(model)
