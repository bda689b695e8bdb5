"""Language models in Python: `LLM` is a model with its engine, ready to answer."""

from __future__ import annotations

import itertools
import os
import queue
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from vtk.errors import RequestError, UsageError, VtkError
from vtk.generations import Generations
from vtk.llm_serving.engine import Delta, Generation
from vtk.llm_serving.engine_loop import EngineLoop
from vtk.llm_serving.results import Collector, GenerationResult
from vtk.llm_serving.sampling.params import SamplingParams
from vtk.requirements import require_llm

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from vtk.llm_serving.args import EngineOptions
    from vtk.llm_serving.load import LoadedEngine
    from vtk.llm_serving.prompts import Conversation, Prompt

PathLike: TypeAlias = "str | os.PathLike[str]"
_DEFAULT = SamplingParams()


class LLM:
    """A language model that any number of threads and tasks may ask at once; a context manager, or call `close`.

    model: a GGUF file, or a folder with config.json, safetensors and tokenizer.json. The options are the fields of
    `vtk.llm_serving.args.EngineArgs` under vLLM's names: max_model_len, max_num_seqs, kv_cache_dtype, … Raises
    CheckpointError for a model that cannot be read, UsageError for options that cannot be used,
    MissingDependencyError.

    A prompt is a text, a list of token ids, or a list of messages {"role": …, "content": …} for the model's chat
    template.
    """

    def __init__(self, model: PathLike, **options: Unpack[EngineOptions]) -> None:
        require_llm()
        from vtk.llm_serving.args import EngineArgs
        from vtk.llm_serving.load import load_engine

        names = EngineArgs.__dataclass_fields__.keys()
        if unknown := sorted(options.keys() - names):
            raise UsageError(f"LLM has no option '{unknown[0]}'.", hint=f"It has: {', '.join(names)}.")
        args = EngineArgs(**options)
        self._loaded: LoadedEngine = load_engine(_path(model), args)
        self._loop = EngineLoop(self._loaded.engine, cpus=args.cpus)
        self._generations = Generations(self._loaded)
        self._names = itertools.count()
        # Also at exit and when the last reference goes: the thread would keep the weights alive.
        self._finalizer = weakref.finalize(self, self._loop.close)

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self._loaded.max_model_len

    @property
    def backend(self) -> str:
        """What computes: cpu-avx512, cpu-avx2, reference, …"""
        return self._loaded.runner.backend

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] = _DEFAULT,
    ) -> list[GenerationResult]:
        """Continue one prompt or many, which share batches; the results come in the order of the prompts.

        sampling_params: for all prompts, or a list with one for each. Raises RequestError, saying which prompt, before
        anything starts if one of them can never be served; BackendError if the engine fails.
        """
        from vtk.llm_serving.prompts import as_prompts

        many = as_prompts(prompts)
        each = _each(sampling_params, len(many))
        if len(each) != len(many):
            raise UsageError(f"There are {len(many)} prompts and {len(each)} sampling_params.")
        return self._collect([self._numbered(i, *pair) for i, pair in enumerate(zip(many, each, strict=True))])

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] = _DEFAULT,
    ) -> list[GenerationResult]:
        """Answer one conversation or many, as `generate` does."""
        from vtk.llm_serving.prompts import as_conversations

        return self.generate(as_conversations(messages), sampling_params)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams = _DEFAULT) -> Generator[Delta, None, None]:
        """The deltas of one request as they come; closing the iterator drops the request.

        Raises RequestError at once for a request that can never be served.
        """
        return self._loop.stream(self._generation(prompt, sampling_params))

    def stream_async(self, prompt: Prompt, sampling_params: SamplingParams = _DEFAULT) -> AsyncGenerator[Delta, None]:
        """`stream` for asyncio: closing the generator or cancelling its task drops the request."""
        from vtk.llm_serving.async_engine import AsyncEngine

        return AsyncEngine(self._loop).stream(self._generation(prompt, sampling_params))

    def close(self) -> None:
        """Stop the engine and free the model; live requests fail. The object is unusable afterwards."""
        if self._finalizer.detach() is not None:  # of several threads that close, one does
            self._loop.close()
            self._loaded.runner.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _generation(self, prompt: Prompt, params: SamplingParams) -> Generation:
        return self._generations.make(f"llm-{next(self._names)}", prompt, params)

    def _numbered(self, index: int, prompt: Prompt, params: SamplingParams) -> Collector:
        try:
            generation = self._generation(prompt, params)
            self._loop.check(generation)
        except RequestError as error:
            raise RequestError(error.code, f"Prompt {index}: {error.message}", hint=error.hint) from error
        return Collector(generation, prompt if isinstance(prompt, str) else None)

    def _collect(self, collectors: Sequence[Collector]) -> list[GenerationResult]:
        """Run them all; if one fails, or the caller is interrupted, the others are dropped."""
        ended: queue.SimpleQueue[VtkError | None] = queue.SimpleQueue()
        cancels: list[Callable[[], None]] = []
        try:
            for collector in collectors:
                cancel = self._loop.submit(collector.generation, collector.listener(ended.put))
                cancels.append(cancel)
            for _ in collectors:
                if (error := ended.get()) is not None:
                    raise error
        finally:
            for cancel in cancels:
                cancel()
        return [collector.result() for collector in collectors]


def _path(model: object) -> Path:
    if isinstance(model, (str, os.PathLike)):
        return Path(model)
    raise UsageError(f"A model is the path of a GGUF file or a folder, got {model!r}.")


def _each(params: object, count: int) -> list[SamplingParams]:
    """One for each of `count` prompts, from one or a list."""
    each = [params] * count if isinstance(params, SamplingParams) else params
    if isinstance(each, Sequence) and all(isinstance(one, SamplingParams) for one in each):
        return list(each)
    raise UsageError(f"sampling_params are SamplingParams, or a list with one for each prompt; got {params!r}.")
