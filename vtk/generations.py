"""From what a caller sends to what the engine takes: tokenizing, chat templates and grammars, on any thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vtk.llm_serving.engine import Generation
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.requirements import require_structured

if TYPE_CHECKING:
    from vtk.llm_serving.load import LoadedEngine
    from vtk.llm_serving.prompts import Prompt
    from vtk.llm_serving.sampling.grammar import GrammarCompiler


class Generations:
    """Makes the requests of one model. Thread-safe."""

    def __init__(self, loaded: LoadedEngine) -> None:
        self._loaded = loaded
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None

    def make(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        queue_timeout: float | None = None,
    ) -> Generation:
        """tools: for the chat template of a conversation. Raises RequestError, MissingDependencyError."""
        from vtk.llm_serving.prompts import encode_prompt

        ids = encode_prompt(prompt, self._loaded.tokenizer, self._loaded.runner.vocab_size, tools=tools)
        mask = None if params.structured_outputs is None else self._grammars().compile(params)
        return Generation(request_id, ids, params, priority, cache_salt, queue_timeout, mask)

    def _grammars(self) -> GrammarCompiler:
        require_structured()
        from vtk.llm_serving.sampling.grammar import GrammarCompiler

        with self._lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(self._loaded.tokenizer, self._loaded.runner.vocab_size)
            return self._compiler
